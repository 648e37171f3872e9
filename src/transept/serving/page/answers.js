// Answers as bars, a matrix, marked texts and tables, pictures, or JSON.

import { copyButton, el, number } from "./dom.js";
import { code } from "./markdown.js";

const LONGEST = 20000; // characters of an answer that are shown as JSON
const ROWS = 16; // of rows of numbers
const labelOf = (each) => String(each.label ?? each.token_str ?? each.answer ?? each.text ?? "");

/** What is said in the place of an answer that holds nothing. */
const nothing = (told) => el("p", { class: "card quiet", word: told });

/** Scores as bars; those beyond 0 to 1 are drawn relative to the largest. */
export function bars(items) {
  if (!items.length) return nothing("nothing");
  const largest = Math.max(1, ...items.map((each) => Math.abs(each.score)));
  const rows = items.map((each) => {
    const fill = el("span", { class: "fill" });
    fill.style.inlineSize = `${(Math.max(each.score, 0) / largest) * 100}%`;
    const texts = [el("span", { dir: "auto", class: "name" }, labelOf(each)), " ", el("span", { class: "score" }, number(each.score, 3))];
    return el("li", {}, ...texts, el("span", { class: "track", "aria-hidden": "true" }, fill));
  });
  return el("ol", { class: "bars" }, ...rows);
}

/** Several answers, each below its text. */
export function labelled(answers, texts = []) {
  return answers.map((answer, place) => el("div", { class: "card" }, texts[place] ? el("p", { dir: "auto" }, texts[place]) : "", answer));
}

/** The cosines of vectors with each other. */
export function matrix(vectors, texts) {
  const sizes = vectors.map((each) => Math.hypot(...each));
  const dot = (one, other) => vectors[one].reduce((sum, value, place) => sum + value * vectors[other][place], 0);
  const head = texts.map((text, place) => el("th", { scope: "col", title: text }, number(place + 1)));
  const rows = texts.map((text, row) => {
    const name = el("th", { scope: "row" }, el("span", { class: "quiet" }, `${number(row + 1)} `), el("bdi", {}, text));
    const cells = texts.map((_, column) => {
      const cosine = dot(row, column) / (sizes[row] * sizes[column] || 1);
      const cell = el("td", {}, number(cosine, 2));
      cell.style.setProperty("--share", `${Math.round(Math.max(cosine, 0) * 100)}%`);
      return cell;
    });
    return el("tr", {}, name, ...cells);
  });
  const caption = el("caption", { word: "matrix", places: { size: vectors[0].length } });
  const table = el("table", { class: "matrix" }, caption, el("thead", {}, el("tr", {}, el("td"), ...head)), el("tbody", {}, ...rows));
  return el("div", { class: "wide", tabindex: 0, role: "group", label: "table" }, table);
}

/** A text whose spans are marked. Places count characters, of which some are two of JavaScript's. */
export function marked(text, spans) {
  const letters = Array.from(text);
  const node = el("p", { class: "marked card", dir: "auto" });
  let at = 0;
  for (const span of spans.filter((each) => each.end > each.start).sort((one, other) => one.start - other.start)) {
    if (span.start < at) continue;
    const label = el("small", {}, [span.entity_group, number(span.score, 2)].filter(Boolean).join(" "));
    const mark = el("mark", {}, letters.slice(span.start, span.end).join(""), " ", label);
    node.append(letters.slice(at, span.start).join(""), mark);
    at = span.end;
  }
  node.append(letters.slice(at).join(""));
  return node;
}

/** Answers with scores as bars, and those that were written as texts. */
export const answers = (found) => (found.some(({ score }) => score == null) ? texts(found) : bars(found));

/** How many numbers stand in each direction. */
export function shape(answer) {
  const sizes = [];
  for (let inner = answer; Array.isArray(inner); inner = inner[0]) sizes.push(number(inner.length));
  return el("p", { class: "quiet", word: "shape", places: { shape: `\u2066${sizes.join(" × ")}\u2069` } }); // from left to right
}

/** A table by its columns, with the cells marked that an answer was taken from. */
export function cells(table, places) {
  const columns = Array.isArray(table) ? Object.keys(table[0] ?? {}) : Object.keys(table);
  const value = (row, column) => (Array.isArray(table) ? table[row]?.[column] : table[column][row]);
  const count = Array.isArray(table) ? table.length : Math.max(0, ...Object.values(table).map((column) => column.length));
  const isTaken = (row, column) => places.some(([one, other]) => one === row && other === column);
  const cell = (row, column, place) => {
    const text = String(value(row, column) ?? "");
    return el("td", { dir: "auto" }, isTaken(row, place) ? el("mark", {}, text) : text);
  };
  const head = el("tr", {}, ...columns.map((column) => el("th", { scope: "col", dir: "auto" }, column)));
  const rows = Array.from({ length: count }, (_, row) => el("tr", {}, ...columns.map((column, place) => cell(row, column, place))));
  const shown = el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows));
  return el("div", { class: "wide", tabindex: 0, role: "group", label: "table" }, shown);
}

/** What was written: the texts of an answer. */
export function texts(answer) {
  const found = [answer].flat().map((each) => each.text ?? each.answer ?? Object.entries(each).find(([name]) => name.endsWith("_text"))?.[1] ?? "");
  return found.map((text) => (text.trim() ? el("div", { class: "card written" }, el("p", { dir: "auto" }, text), copyButton(() => text)) : nothing("empty")));
}

/** The depth of a picture beside it. */
export function depth({ depth: source }, { url, name }) {
  const figure = (src, caption, label) => el("figure", {}, el("img", { src, label }), el("figcaption", { class: "quiet" }, caption));
  return el("div", { class: "pair" }, figure(url, el("bdi", {}, name), "picture"), figure(source, el("span", { word: "lighter" }), "depth"));
}

/** The whole answer, folded where it is shown otherwise. */
export function json(answer, open) {
  const isData = (value) => typeof value === "string" && value.startsWith("data:");
  const isLong = (value) => Array.isArray(value) && value.length > ROWS && Array.isArray(value[0]);
  const cut = (value) => (isData(value) ? `${value.slice(0, 40)}…` : isLong(value) ? [...value.slice(0, ROWS), "…"] : value);
  const short = JSON.stringify(answer, (_, value) => cut(value), 1);
  const flat = short.replace(/\[\s+(-?[\d.e-]+(?:,\s+-?[\d.e-]+)*)\s+\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`); // a vector is a line
  const text = flat.length > LONGEST ? `${flat.slice(0, LONGEST)}\n…` : flat;
  return el("details", { open }, el("summary", { word: "as-json" }), code(text.split("\n"), "json"));
}
