// A form for every task: its fields, the request that they make, and how the answer is shown.

import { ask, parsed, trouble } from "./api.js";
import { answers, bars, cells, depth, json, labelled, marked, matrix, shape, texts } from "./answers.js";
import { $, el, number, say, translate, word } from "./dom.js";
import { drawn } from "./drawn.js";
import { fileField, onFiles } from "./files.js";
import { showAsCode } from "./snippets.js";

const field = (kind, name, more = {}) => ({ kind, name, ...more });
const parameter = (kind, name, more = {}) => field(kind, name, { parameter: true, optional: true, ...more });
const TEXT = field("text", "text");
const QUESTION = field("line", "question");
const PICTURE = field("file", "picture", { accept: "image/*" });
const SOUND = field("file", "sound", { accept: "audio/*" });
const MOST = parameter("number", "top_k", { min: 1 });
const LABELS = parameter("labels", "candidate_labels", { value: "labels-example", optional: false });
const SURE = parameter("number", "threshold", { min: 0, max: 1, step: 0.01 });
const LONGEST = parameter("number", "max_new_tokens", { value: 128, min: 1, max: 1024 });
const PAGE = 1000; // of which the boxes of words are shares
const LANGUAGES = [parameter("line", "src_lang"), parameter("line", "tgt_lang")];

/** A pipeline that reads one field, and has parameters beside it. */
const reads = (read, show, ...parameters) => ({ fields: [read, ...parameters], input: (found) => found[read.name], show });
const named = ({ labels, scores }) => bars(labels.map((label, place) => ({ label, score: scores[place] })));
const masks = (answer) => labelled((Array.isArray(answer[0]) ? answer : [answer]).map(bars));
const vectors = (read) => ({ ...reads(read, shape), isOpen: true });
const seen = (answer, { file }) => (answer.length ? drawn(answer, file) : bars(answer));

/** The words of a page that answer a question, in a box around them. */
function onPage(answer, { words, file: { width, height } }) {
  return answer.map(({ start, end, ...told }) => {
    const side = (most, at, size) => (most(...words.slice(start, end + 1).map(([, box]) => box[at])) / PAGE) * size;
    const [xmin, ymin] = [side(Math.min, 0, width), side(Math.min, 1, height)];
    return { ...told, box: { xmin, ymin, xmax: side(Math.max, 2, width), ymax: side(Math.max, 3, height) } };
  });
}

// Tasks with a route of their own make its whole `body`, and the others the `input` of their pipeline.
const TASKS = {
  chat: null, // has a view of its own
  "text-generation": {
    fields: [field("text", "prompt"), LONGEST, field("number", "temperature", { min: 0, max: 2, step: 0.1, optional: true })],
    route: "v1/completions",
    body: ({ prompt, max_new_tokens: max_tokens, temperature }) => ({ prompt, max_tokens, temperature }),
    show: (answer, { prompt }) => texts({ text: prompt + answer.choices[0].text }),
  },
  "text-embedding": {
    fields: [field("lines", "texts", { value: "texts-example" })],
    route: "v1/embeddings", body: ({ texts: input }) => ({ input }),
    show: (answer, { texts: input }) => matrix(answer.data.map((each) => each.embedding), input),
  },
  "text-ranking": {
    fields: [field("line", "query", { value: "query-example" }), field("lines", "passages", { value: "passages-example" })],
    route: "v1/rerank", body: ({ query, passages: documents }) => ({ query, documents }),
    show: (answer, { passages }) => bars(answer.results.map((each) => ({ label: passages[each.index], score: each.relevance_score }))),
  },
  "text-classification": {
    fields: [field("lines", "texts"), MOST],
    route: "v1/classify", body: ({ texts: input, top_k }) => ({ input, top_k }),
    show: (answer, { texts: input }) => labelled(answer.data.map((each) => bars(each.scores)), input),
  },
  "zero-shot-classification": reads(TEXT, named, LABELS, parameter("check", "multi_label")),
  "token-classification": { ...reads(TEXT, (answer, { text }) => marked(text, answer)), fixed: { aggregation_strategy: "simple" } },
  "fill-mask": reads(field("text", "text-mask"), masks, MOST),
  "question-answering": {
    fields: [QUESTION, field("text", "context")],
    input: ({ question, context }) => ({ question, context }),
    show: (answer, { context }) => marked(context, [answer].flat()),
  },
  "text2text-generation": reads(TEXT, texts, LONGEST), summarization: reads(TEXT, texts, LONGEST),
  translation: reads(TEXT, texts, LONGEST, ...LANGUAGES),
  "feature-extraction": vectors(TEXT),
  "image-classification": reads(PICTURE, bars, MOST),
  "zero-shot-image-classification": reads(PICTURE, bars, LABELS),
  "object-detection": reads(PICTURE, seen, SURE), "image-segmentation": reads(PICTURE, seen, SURE),
  "depth-estimation": reads(PICTURE, (answer, { file }) => depth(answer, file)),
  "image-to-text": reads(PICTURE, texts, LONGEST),
  "image-embedding": vectors(PICTURE), "image-feature-extraction": vectors(PICTURE), "audio-embedding": vectors(SOUND),
  "visual-question-answering": {
    fields: [PICTURE, QUESTION], input: ({ picture: image, question }) => ({ image, question }), show: answers,
  },
  "document-question-answering": {
    fields: [PICTURE, QUESTION, field("json", "words", { optional: true, hint: "words-hint" }), MOST],
    input: ({ picture: image, question, words: word_boxes }) => ({ image, question, ...(word_boxes && { word_boxes }) }),
    show: (answer, given) => (given.words && answer.length ? drawn(onPage(answer, given), given.file) : answers(answer)),
  },
  "audio-classification": reads(SOUND, bars, MOST),
  "automatic-speech-recognition": reads(SOUND, texts),
  "table-question-answering": {
    fields: [QUESTION, field("json", "table", { value: "table-example" })],
    input: ({ question: query, table }) => ({ query, table }),
    show: (answer, { table }) => [...texts(answer), cells(table, answer.coordinates ?? [])],
  },
};

// Tasks that a model can do when it can do one of them.
const HEADS = [
  ["chat", "text-generation"], ["image-text-to-text", "chat"],
  ["text-embedding", "feature-extraction"], ["image-embedding", "image-feature-extraction"],
  ["text-classification", "zero-shot-classification", "text-ranking"],
  ["text2text-generation", "summarization", "translation"],
];

/** The tasks of a model that the page knows; its own comes first. */
export function tasksOf({ task }) {
  const own = task === "text-similarity" ? "text-embedding" : task;
  const head = HEADS.find((each) => each.includes(own)) ?? [own];
  return head.filter((name) => name in TASKS).sort((one, other) => (other === own) - (one === own));
}

const view = $("form");
const form = $("asked");
const place = view.querySelector(".answer");
const drafts = {}; // the fields of each task, with what was typed
let current = null;

/** Show the form of a task. */
export function showForm(task) {
  if (current === task) return;
  running?.abort();
  current = task;
  drafts[task] ??= TASKS[task].fields.map((each) => ({ ...each, node: control(each) }));
  const rows = drafts[task].map(({ name, kind, node, optional }) => {
    const mark = optional && kind !== "check" ? el("span", { class: "quiet", word: "optional" }) : "";
    const told = el("span", { word: `field-${name.replaceAll("_", "-")}` });
    return el("label", { class: kind }, el("span", {}, told, " ", mark), node);
  });
  const submit = el("button", { type: "submit", class: "main", word: "run" });
  form.replaceChildren(...rows, el("div", { class: "row" }, submit, el("p", { class: "facts quiet" })));
  place.replaceChildren();
  busy(null);
}

function control({ kind, value, optional, accept, hint, min, max, step = 1 }) {
  const required = !optional;
  if (kind === "check") return el("input", { type: "checkbox" });
  if (kind === "file") return fileField({ accept, optional });
  if (kind === "number") return el("input", { type: "number", required, min, max, step, value });
  const node = el(["line", "labels"].includes(kind) ? "input" : "textarea", { dir: kind === "json" ? "ltr" : "auto", rows: 5, required, hint });
  node.value = value ? word(value) : "";
  return node;
}

/** What the fields hold, by their names. */
async function values() {
  const found = {};
  for (const { kind, name, node } of drafts[current]) {
    if (kind === "check") found[name] = node.checked;
    else if (kind === "number") found[name] = node.value === "" ? undefined : node.valueAsNumber;
    else if (kind === "labels") found[name] = node.value.split(/[,،]/).map((label) => label.trim()).filter(Boolean);
    else if (kind === "lines") found[name] = node.value.split("\n").filter((line) => line.trim());
    else if (kind === "file") found[name] = (found.file = await node.chosen).url;
    else if (kind === "json") found[name] = node.value.trim() ? parsed(node.value, `field-${name}`) : undefined;
    else found[name] = node.value || undefined;
  }
  return found;
}

/** The route and the body of what the form asks. */
function request(found) {
  const task = TASKS[current];
  const model = view.querySelector(".model").value;
  if (task.body) return [task.route, { model, ...task.body(found) }];
  const parameters = Object.fromEntries(task.fields.filter((each) => each.parameter).map(({ name }) => [name, found[name]]));
  return [`v1/tasks/${current}`, { model, inputs: task.input(found), parameters: { ...parameters, ...task.fixed } }];
}

let running = null; // aborts what is asked

/** Show that something is asked, and that the button stops it; or that nothing is. */
function busy(now) {
  running = now;
  view.classList.toggle("asking", Boolean(now));
  const button = form.querySelector("[type=submit]");
  button.dataset.word = now ? "stop" : "run";
  button.ariaBusy = Boolean(now);
  translate(form);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  if (running) return running.abort();
  const [task, mine] = [current, new AbortController()];
  busy(mine);
  form.querySelector(".facts").replaceChildren();
  try {
    const found = await values();
    const began = performance.now();
    const answer = await ask(...request(found), mine.signal);
    const facts = el("span", { word: "took", places: { time: number((performance.now() - began) / 1000, 2) } });
    const shown = await TASKS[task].show(answer, found);
    if (running !== mine) return; // another form has taken its place
    form.querySelector(".facts").replaceChildren(facts);
    place.replaceChildren(...[shown].flat(), json(answer, TASKS[task].isOpen));
    place.scrollIntoView({ block: "nearest" });
    say(word("answered"));
  } catch (error) {
    if (running === mine) place.replaceChildren(...(error.name === "AbortError" ? [] : [trouble(error)]));
  } finally {
    if (running === mine) busy(null);
  }
});

document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
onFiles(view, (files) => drafts[current].find(({ kind }) => kind === "file")?.node.give(files));

view.querySelector(".as-code").addEventListener("click", async () => {
  try {
    if (form.reportValidity()) showAsCode(...request(await values()));
  } catch (error) {
    place.replaceChildren(trouble(error));
  }
});
