// Answers as bars, a matrix, marked texts, pictures, or JSON.

import { copyButton, el, number } from "./dom.js";
import { code } from "./markdown.js";

const LONGEST = 20000; // characters of an answer that are shown as JSON
const labelOf = (each) => String(each.label ?? each.token_str ?? each.answer ?? each.text ?? "");

/** Scores as bars; those beyond 0 to 1 are drawn relative to the largest. */
export function bars(items) {
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

/** What was written: the texts of an answer. */
export function texts(answer) {
  const found = [answer].flat().map((each) => each.text ?? each.answer ?? Object.entries(each).find(([name]) => name.endsWith("_text"))?.[1] ?? "");
  return found.map((text) => el("div", { class: "card written" }, copyButton(() => text), el("p", { dir: "auto" }, text)));
}

/** The pictures of an answer, with what is said of them. */
export function pictures(answer) {
  return [answer].flat().map((each) => {
    const source = Object.values(each).find((value) => String(value).startsWith("data:image/"));
    const told = each.label === undefined ? "" : each.label + (each.score == null ? "" : ` ${number(each.score, 2)}`);
    return el("figure", { class: "card" }, el("img", { src: source, alt: told }), el("figcaption", { dir: "auto" }, told));
  });
}

/** The whole answer, folded where it is shown otherwise. */
export function json(answer, open) {
  const isData = (value) => typeof value === "string" && value.startsWith("data:");
  const short = JSON.stringify(answer, (_, value) => (isData(value) ? `${value.slice(0, 40)}…` : value), 1);
  const flat = short.replace(/\[\s+(-?[\d.e-]+(?:,\s+-?[\d.e-]+)*)\s+\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`); // a vector is a line
  const text = flat.length > LONGEST ? `${flat.slice(0, LONGEST)}\n…` : flat;
  return el("details", { open }, el("summary", { word: "as-json" }), code(text.split("\n"), "json"));
}
