// The whole page: its language and theme, the models that are served, and one view for what each can do.

import { ask, trouble } from "./api.js";
import "./chat.js";
import { $, el, icon, keep, kept, LANGUAGES, number, say, speak, translate, word } from "./dom.js";
import { showForm, tasksOf } from "./tasks.js";

// Views in the order of the navigation, each with the tasks that it is for; `form` views share one section.
const VIEWS = [
  { name: "chat", tasks: ["chat"] },
  { name: "embeddings", form: true, tasks: ["text-embedding"] },
  { name: "rerank", form: true, tasks: ["text-ranking"] },
  { name: "classify", form: true, tasks: ["text-classification", "zero-shot-classification"] },
  { name: "tasks", form: true },
  { name: "models", tasks: [] },
];
const named = VIEWS.flatMap(({ tasks = [] }) => tasks);
const chosen = kept("sessionStorage", "chosen") ?? {}; // the model of each view
const doing = {}; // the task of each model
let models = [];

/** The tasks of a model that a view is for. */
function tasksIn(view, model) {
  return tasksOf(model).filter((task) => (view.tasks ? view.tasks.includes(task) : !named.includes(task)));
}

/** The models for a view, first those whose own task it is for. */
function modelsFor(view) {
  const isOwn = ({ task }) => view.tasks?.includes(task) ?? false;
  return models.filter((model) => tasksIn(view, model).length).sort((one, other) => isOwn(other) - isOwn(one));
}

const current = () => usable().find(({ name }) => `#${name}` === location.hash) ?? usable()[0];
const usable = () => VIEWS.filter((view) => view.name === "models" || modelsFor(view).length);

function navigate() {
  $("trouble").replaceChildren();
  const view = current();
  const section = $(view.form ? "form" : view.name);
  for (const each of document.querySelectorAll(".view")) each.hidden = each !== section;
  for (const link of $("views").children) link.ariaCurrent = link.hash === `#${view.name}` ? "page" : null;
  const picker = section.querySelector(".model");
  if (picker) fill(picker, modelsFor(view).map(({ id }) => id), chosen[view.name]);
  $("attach").hidden = models.find(({ id }) => id === chosenIn(section))?.task !== "image-text-to-text";
  if (view.form) {
    Object.assign($("form-title").dataset, { word: view.name });
    chooseTask(view);
  }
  $("settings").hidden = view.name !== "chat" || !settingsOpen;
  $("show-settings").setAttribute("aria-expanded", settingsOpen);
  translate(section);
  document.title = `${word(view.name)} · transept`;
}

const chosenIn = (section) => section.querySelector(".model")?.value;

/** Offer what the chosen model can do in a view. */
function chooseTask(view) {
  const model = models.find(({ id }) => id === chosenIn($("form")));
  const tasks = model ? tasksIn(view, model) : [];
  const picker = $("form").querySelector(".task");
  fill(picker, tasks, doing[model?.id]);
  picker.parentNode.hidden = tasks.length < 2 && view.name !== "tasks";
  if (tasks.length) showForm(picker.value);
}

function choose(view, model) {
  chosen[view] = model;
  keep("sessionStorage", "chosen", chosen);
}

function fill(picker, choices, old) {
  picker.replaceChildren(...choices.map((value) => el("option", { value }, value)));
  if (choices.includes(old)) picker.value = old;
}

$("main").addEventListener("change", ({ target }) => {
  if (target.matches(".model")) choose(current().name, target.value);
  if (target.matches(".task")) doing[chosenIn($("form"))] = target.value;
  if (target.matches(".model, .task")) navigate();
});
window.addEventListener("hashchange", () => {
  if (location.hash === "#models") refresh(); // others may have loaded some
  navigate();
  $("main").focus();
});
for (const kind of ["error", "unhandledrejection"]) {
  window.addEventListener(kind, (event) => {
    event.preventDefault(); // it is told here
    $("trouble").replaceChildren(trouble(event.reason ?? event.error ?? event));
  });
}

async function refresh() {
  try {
    models = (await ask("v1/models")).data;
  } catch (error) {
    return $("trouble").replaceChildren(trouble(error, refresh));
  }
  $("views").replaceChildren(...usable().map(({ name }) => el("a", { href: `#${name}` }, icon(name), el("span", { word: name }))));
  const none = el("li", { class: "card quiet", word: "no-models" });
  $("served").replaceChildren(...(models.length ? models.map(modelCard) : [none]));
  navigate();
}

function modelCard(model) {
  const { id, task, loaded, context, bytes } = model;
  const view = VIEWS.find((each) => tasksIn(each, model).length);
  const facts = [el("span", { dir: "ltr" }, task ?? "")];
  if (context) facts.push(el("span", { word: "context", places: { tokens: number(context) } }));
  if (bytes) facts.push(el("span", { word: "megabytes", places: { size: number(bytes / 1e6, 1) } }));
  const change = (event) => move(event.target, loaded ? "unload" : "load", id);
  const buttons = [el("button", { type: "button", word: loaded ? "unload" : "load", onclick: change })];
  if (view) buttons.unshift(el("a", { class: "button", href: `#${view.name}`, word: "open", onclick: () => choose(view.name, id) }));
  const state = el("span", { class: loaded ? "state loaded" : "state", word: loaded ? "loaded" : "not-loaded" });
  const head = el("div", { class: "row" }, el("h3", { dir: "ltr" }, id), state);
  return el("li", { class: "card" }, head, el("p", { class: "quiet facts-row" }, ...facts), el("div", { class: "row" }, ...buttons));
}

/** Load or unload a model. */
async function move(button, what, model) {
  const place = models.findIndex(({ id }) => id === model);
  button.disabled = button.ariaBusy = true;
  try {
    await ask(`v1/models/${what}`, { model });
    say(`${model}: ${word(what === "load" ? "loaded" : "not-loaded")}`);
    await refresh();
    $("served").children[place]?.querySelector("button").focus();
  } catch (error) {
    button.disabled = button.ariaBusy = false;
    button.closest(".card").append(trouble(error));
  }
}

const preferred = navigator.languages.map((tag) => tag.slice(0, 2)).find((tag) => LANGUAGES.includes(tag));
let settingsOpen = kept("localStorage", "settings") ?? matchMedia("(min-width: 75rem)").matches;

/** A choice that the browser remembers. */
function remember(picker, usual, apply) {
  picker.value = kept("localStorage", picker.id) ?? usual;
  apply(picker.value);
  picker.addEventListener("change", () => {
    keep("localStorage", picker.id, picker.value);
    apply(picker.value);
    navigate();
  });
}

remember($("theme"), "system", (theme) => (document.documentElement.dataset.theme = theme));
remember($("language"), preferred ?? "en", speak);

$("show-settings").addEventListener("click", () => {
  settingsOpen = !settingsOpen;
  keep("localStorage", "settings", settingsOpen);
  navigate();
  if (settingsOpen) $("setting").elements.system.focus();
});

await refresh();
