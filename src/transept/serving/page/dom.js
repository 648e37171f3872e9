// Elements, words and what the page remembers. Texts enter the document by textContent alone.

import words from "./words.json" with { type: "json" };

export const $ = (id) => document.getElementById(id);
export const LANGUAGES = ["en", "es", "ar"];
const MARKS = /[*_`#>|~]+/g; // of Markdown, which nobody wants to hear
let language = "en";

/** The word of that name in the language of the page, with its {places} filled. */
export function word(name, places = {}) {
  return words[name][language].replace(/\{(\w+)\}/g, (whole, place) => places[place] ?? whole);
}

export const number = (value, digits = 0) =>
  value.toLocaleString(language, { maximumFractionDigits: digits, minimumFractionDigits: digits });

/** Turn the page into a language: all that stands in it, and what comes. */
export function speak(chosen) {
  language = LANGUAGES.includes(chosen) ? chosen : "en";
  document.documentElement.lang = language;
  document.documentElement.dir = language === "ar" ? "rtl" : "ltr";
  translate(document.documentElement);
}

/** Give the elements below one their words. */
export function translate(root) {
  for (const node of root.querySelectorAll("[data-word], [data-label], [data-hint]")) worded(node);
}

function worded(node) {
  const { word: text, label, hint, places: given } = node.dataset;
  const places = given && JSON.parse(given);
  if (text) node.textContent = word(text, places);
  if (label) node.setAttribute("aria-label", word(label, places));
  if (label && node.matches("button")) node.title = word(label, places);
  if (hint) node.placeholder = word(hint);
}

/**
 * A new element with its children, texts among them. Of the attributes, `word`, `label` and `hint` name words, `places`
 * fills them, `on…` are listeners, and those that are false or undefined are left out.
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "places") node.dataset.places = JSON.stringify(value);
    else if (["word", "label", "hint"].includes(name)) node.dataset[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  worded(node);
  node.append(...children);
  return node;
}

export function icon(name) {
  const drawn = document.querySelector("svg").cloneNode(true);
  drawn.firstElementChild.setAttribute("href", `assets/icons.svg#${name}`);
  return drawn;
}

/** A button that shows an icon and says a word. */
export const iconButton = (name, label, onclick, places) => el("button", { type: "button", label, places, onclick }, icon(name));

/** A button that copies what `text` gives, and says so. */
export function copyButton(text) {
  const button = iconButton("copy", "copy", async () => {
    await copy(text());
    say(word("copied"));
    button.classList.add("done");
    setTimeout(() => button.classList.remove("done"), 1200);
  });
  return button;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = el("textarea"); // addresses without https have no clipboard
  field.value = text;
  (document.querySelector("dialog[open]") ?? document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

/** Let a screen reader say a text. */
export function say(text) {
  const voice = $("voice");
  if (text.trim()) voice.append(el("p", {}, text.trim()));
  while (voice.childElementCount > 20) voice.firstElementChild.remove();
}

/** Says a text that grows sentence by sentence, each when it is whole. */
export class Voice {
  #rest = "";

  add(text) {
    const found = new Intl.Segmenter(language, { granularity: "sentence" }).segment(this.#rest + text);
    const parts = Array.from(found, ({ segment }) => segment);
    this.#rest = parts.pop() ?? "";
    say(parts.join("").replace(MARKS, ""));
  }

  end() {
    say(this.#rest.replace(MARKS, ""));
  }
}

/** What a storage of the browser has under a name, or nothing where it keeps nothing. */
export function kept(storage, name) {
  try {
    return JSON.parse(window[storage].getItem(`transept.${name}`));
  } catch {
    return null;
  }
}

export function keep(storage, name, value) {
  try {
    window[storage].removeItem(`transept.${name}`); // where the new value has no place, no older one comes back
    window[storage].setItem(`transept.${name}`, JSON.stringify(value));
  } catch {
    // Without a storage, or where it is full, the page works until it is closed.
  }
}
