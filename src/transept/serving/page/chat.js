// A conversation, streamed.

import { Failure, parsed, stream, trouble } from "./api.js";
import { onFiles, thumbs, Tray } from "./files.js";
import { $, copyButton, el, icon, iconButton, keep, kept, number, say, Voice, word } from "./dom.js";
import { code, show } from "./markdown.js";
import { showAsCode } from "./snippets.js";

const settings = $("setting");
const ROUTE = "v1/chat/completions";
let turns = kept("sessionStorage", "turns") ?? []; // messages as the API has them; `facts`, `stopped` and `names` are the page's

/** The request that the conversation and the settings make; what is empty is the model's own. */
function body() {
  const fields = settings.elements;
  if (!settings.reportValidity()) throw new Failure(word("wrong-setting"));
  const model = document.querySelector("#chat .model").value;
  const messages = turns.map(({ facts, stopped, names, ...own }) => own);
  if (fields.system.value.trim()) messages.unshift({ role: "system", content: fields.system.value.trim() });
  const numbers = ["temperature", "top_p", "max_tokens", "seed"].filter((name) => fields[name].value !== "");
  const found = { model, messages, ...Object.fromEntries(numbers.map((name) => [name, fields[name].valueAsNumber])) };
  const stop = fields.stop.value.split("\n").filter(Boolean);
  if (stop.length) found.stop = stop;
  if (fields.tools.value.trim()) found.tools = parsed(fields.tools.value, "tools");
  return { ...found, ...(fields.more.value.trim() && parsed(fields.more.value, "more")) };
}

let running = null; // aborts the answer that is being written

/** Show the button that sends, or the one that stops what is running. */
function busy(now) {
  running = now;
  const [shown, other] = now ? [$("stop"), $("send")] : [$("send"), $("stop")];
  const had = document.activeElement === other;
  [other.hidden, shown.hidden] = [true, false];
  if (had) shown.focus(); // a hidden button would lose the keyboard's place
}

const abort = () => running?.abort();
$("stop").addEventListener("click", abort);
document.addEventListener("keydown", (event) => event.key === "Escape" && abort());

const list = $("turns");
const scroll = document.querySelector(".scroll");

/** A message of a person: a text, and pictures before it where there are some. */
function said(text, pictures) {
  if (!pictures.length) return { role: "user", content: text };
  const parts = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  if (text.trim()) parts.push({ type: "text", text });
  return { role: "user", content: parts, names: pictures.map(({ name }) => name) };
}

const parts = ({ content }) => (typeof content === "string" ? [{ type: "text", text: content }] : content);
const textOf = (message) => parts(message).map(({ text }) => text ?? "").join("");

function picturesOf(message) {
  const shown = parts(message).filter(({ image_url }) => image_url);
  return shown.map(({ image_url: { url } }, place) => ({ url, name: message.names[place] }));
}

/** Show a message; `update` shows what has come since. */
class Turn {
  constructor(message, place) {
    Object.assign(this, { message, place });
    const who = { user: "you", assistant: "assistant", tool: "result" }[message.role];
    this.text = el("div", { class: "text", dir: "auto" });
    this.pictures = el("div", { class: "pictures" });
    this.reasoning = el("div", { class: "text" });
    this.thought = el("details", { class: "reasoning" }, el("summary", { word: "reasoning" }), this.reasoning);
    this.calls = el("div", { class: "calls" });
    this.facts = el("p", { class: "facts quiet" });
    this.actions = el("div", { class: "actions" });
    const head = el("h3", { class: "who", word: who });
    this.node = el("li", { class: `turn ${message.role}` }, head, this.thought, this.pictures, this.text, this.calls, this.facts, this.actions);
    this.update();
    this.end();
  }

  update() {
    const { role, reasoning_content: reasoning, tool_calls: calls = [] } = this.message;
    const [text, pictures] = [textOf(this.message), picturesOf(this.message)];
    this.thought.hidden = !reasoning;
    if (reasoning) show(this.reasoning, reasoning);
    if (role !== "assistant") this.text.textContent = text;
    else show(this.text, text);
    this.pictures.replaceChildren(...(pictures.length ? [thumbs(pictures)] : []));
    this.calls.replaceChildren(...calls.map(card));
  }

  /** What may be done with a message that is whole. */
  end() {
    const { role, facts, stopped } = this.message;
    if (stopped) this.facts.replaceChildren(el("span", { word: "stopped" }));
    if (facts) this.facts.replaceChildren(el("span", { word: "facts", places: facts }));
    this.actions.replaceChildren(copyButton(() => textOf(this.message)));
    if (role === "user") this.actions.append(iconButton("edit", "edit", () => this.edit()));
    if (role === "assistant") this.actions.append(iconButton("again", "again", () => goOn(this.place)));
  }

  edit() {
    const field = el("textarea", { label: "edit", dir: "auto", rows: 3 });
    field.value = textOf(this.message);
    const tray = new Tray(field, picturesOf(this.message));
    const save = el("button", { type: "submit", class: "main", word: "send" });
    const goBack = () => (form.replaceWith(this.text), (this.pictures.hidden = false), this.end());
    const back = el("button", { type: "button", word: "cancel", onclick: goBack });
    const more = $("attach").hidden ? "" : iconButton("attach", "attach", () => pick(tray));
    const form = el("form", { class: "editing" }, tray.node, field, el("div", { class: "row" }, save, back, more));
    onSubmit(form, async () => {
      await tray.ready;
      if (isSaid(field, tray)) goOn(this.place, said(field.value, tray.pictures));
    });
    field.addEventListener("focus", () => (current = tray)); // what is pasted or dropped now goes here
    this.actions.replaceChildren();
    this.pictures.hidden = true;
    this.text.replaceWith(form);
    field.focus();
  }
}

/** A call of a function, with its arguments, and a place for what it gives. */
function card(call) {
  const { name, arguments: given } = call.function;
  let shown = given;
  try {
    shown = JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    // Shown as the model wrote it.
  }
  const field = el("textarea", { rows: 2, dir: "auto", required: true });
  const label = el("label", {}, el("span", { word: "result" }), field);
  const form = el("form", { hidden: isAnswered(call) }, label, el("button", { type: "submit", word: "send-result" }));
  onSubmit(form, () => {
    form.hidden = true;
    add({ role: "tool", tool_call_id: call.id, content: field.value });
    if (turns.findLast((turn) => turn.tool_calls).tool_calls.every(isAnswered)) answer();
  });
  const head = el("p", { class: "call-name" }, icon("call"), el("strong", { dir: "ltr" }, name));
  return el("div", { class: "card call" }, head, code(shown.split("\n"), "json"), form);
}

const isAnswered = (call) => turns.some((turn) => turn.tool_call_id === call.id);
const onSubmit = (form, act) => form.addEventListener("submit", (event) => (event.preventDefault(), act()));

function add(message) {
  const turn = new Turn(message, turns.push(message) - 1);
  $("welcome").hidden = true;
  list.append(turn.node);
  scroll.scrollTop = scroll.scrollHeight;
  return turn;
}

/** Forget a message and all that follow it, and go on from there, with another message if one is given. */
function goOn(place, message) {
  abort();
  redraw(turns.slice(0, place));
  if (message) add(message);
  answer();
}

function redraw(left) {
  turns = left;
  list.replaceChildren(...turns.map((message, place) => new Turn(message, place).node));
  $("welcome").hidden = turns.length > 0;
}

/** Let the model write the next message. */
async function answer() {
  list.querySelector(".failed")?.remove();
  const place = turns.length;
  let turn = null;
  try {
    const asked = { ...body(), stream: true, stream_options: { include_usage: true } };
    turn = add({ role: "assistant", content: "" });
    turn.node.classList.add("writing");
    await write(turn, asked);
  } catch (error) {
    const card = trouble(error, () => goOn(place));
    list.append(el("li", { class: "turn failed" }, card));
    scroll.scrollTop = scroll.scrollHeight;
    if (turn && turns[place] === turn.message && !turn.message.content && !turn.message.reasoning_content) {
      turns.pop();
      turn.node.remove();
    }
  }
  turn?.node.classList.remove("writing");
  turn?.end();
  if (low()) scroll.scrollTop = scroll.scrollHeight;
  keep("sessionStorage", "turns", turns);
}

/** Whether the end of the conversation is in sight; who has scrolled up reads there. */
const low = () => scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 120;

/** Write an answer into a message: seen at each frame of the screen, heard sentence by sentence. */
async function write(turn, asked) {
  const [voice, mine, began] = [new Voice(), new AbortController(), performance.now()];
  let drawing = 0;
  let first = null;
  const draw = () => {
    drawing = 0;
    const follow = low();
    turn.update();
    if (follow) scroll.scrollTop = scroll.scrollHeight;
  };
  busy(mine);
  try {
    for await (const { choices, usage } of stream(ROUTE, asked, mine.signal)) {
      if (usage) turn.message.facts = factsOf(usage.completion_tokens, began, first ?? began);
      if (choices[0] && grow(turn.message, choices[0].delta)) first ??= performance.now();
      voice.add(choices[0]?.delta.content ?? "");
      drawing ||= requestAnimationFrame(draw);
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    turn.message.stopped = true;
    say(word("stopped"));
  } finally {
    if (running === mine) busy(null);
    cancelAnimationFrame(drawing);
    draw();
    voice.end();
  }
}

/** How many tokens came, how many a second, and after how long the first. */
function factsOf(tokens, began, first) {
  const speed = Math.max(tokens - 1, 0) / ((performance.now() - first) / 1000);
  return { tokens: number(tokens), speed: number(speed, 1), wait: number((first - began) / 1000, 2) };
}

/** Add to a message what a chunk brings; whether it brings anything. */
function grow(message, { content, reasoning_content: reasoning, tool_calls: calls = [] }) {
  if (content) message.content += content;
  if (reasoning) message.reasoning_content = (message.reasoning_content ?? "") + reasoning;
  for (const { index, id, type, function: called } of calls) {
    message.tool_calls ??= [];
    message.tool_calls[index] ??= { id, type: type ?? "function", function: { name: called.name, arguments: "" } };
    message.tool_calls[index].function.arguments += called.arguments ?? "";
  }
  return Boolean(content || reasoning || calls.length);
}

const message = $("message");
const composed = new Tray(message);
$("composer").prepend(composed.node);
let current = composed; // the tray to which pictures are added

const isSaid = (field, { pictures }) => field.value.trim() || pictures.length;

onSubmit($("composer"), async () => {
  await composed.ready;
  if (running || !isSaid(message, composed)) return;
  add(said(message.value, composed.take()));
  message.value = "";
  answer();
});

message.addEventListener("focus", () => (current = composed));

/** Let pictures be chosen for a tray. */
function pick(tray) {
  current = tray;
  $("picked").click();
}

$("attach").addEventListener("click", () => pick(composed));
$("picked").addEventListener("change", ({ target }) => {
  current.add(target.files);
  target.value = ""; // so that the same one can be chosen again
  current.home.focus();
});

onFiles($("chat"), (files) => {
  if (!current.node.isConnected) current = composed;
  if ($("attach").hidden) current.draw(trouble(new Failure(word("sees-nothing"))));
  else current.add(files);
});
document.querySelector("#chat .model").addEventListener("change", () => composed.draw()); // without what was wrong with another

message.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("composer").requestSubmit();
});

$("new-chat").addEventListener("click", () => {
  abort();
  redraw([]);
  keep("sessionStorage", "turns", turns);
  message.focus();
});

document.querySelector(".ideas").addEventListener("click", ({ target }) => {
  if (target.matches("button")) message.value = target.textContent;
  message.focus();
});

document.querySelector("#chat .as-code").addEventListener("click", () => {
  const asked = body();
  if (isSaid(message, composed)) asked.messages.push(said(message.value, composed.pictures));
  showAsCode(ROUTE, { ...asked, stream: true });
});

redraw(turns);
