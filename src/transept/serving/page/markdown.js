// Markdown as nodes: no HTML is read and none is written, so that a text can show whatever it likes and do nothing.

import { copyButton, el } from "./dom.js";

// Repetitions that could begin at many places have bounds, so that a hostile text takes no longer than its length.
const FENCE = /^ {0,3}(`{3,}|~{3,}) {0,9}([^`\s]{0,40})[^`]*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const COLUMNS = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?$/;
const DEPTH = 8; // of quotes and lists in each other

/** Show a text below a node; of a text that has grown, only the blocks that differ are made anew. */
export function show(node, text) {
  const old = Array.from(node.children);
  const found = blocks(text.split("\n"));
  found.forEach((source, place) => {
    if (old[place]?.source === source) return;
    const made = Object.assign(block(source.split("\n"), 0), { source });
    if (old[place]) old[place].replaceWith(made);
    else node.append(made);
  });
  for (const each of old.slice(found.length)) each.remove();
}

/** The texts of the blocks that follow each other. */
function blocks(lines) {
  const found = [];
  for (let at = 0, end; at < lines.length; at = end) {
    end = lines[at].trim() ? endOf(lines, at) : at + 1;
    if (lines[at].trim()) found.push(lines.slice(at, end).join("\n"));
  }
  return found;
}

/** Where the block ends that begins at a line. */
function endOf(lines, at) {
  const fence = FENCE.exec(lines[at]);
  let end = at + 1;
  if (fence) {
    while (end < lines.length && !isClosing(lines[end], fence[1])) end += 1;
    return Math.min(end + 1, lines.length);
  }
  if (HEADING.test(lines[at]) || RULE.test(lines[at])) return end;
  if (ITEM.test(lines[at])) {
    for (let next = end; next < lines.length; next += 1) {
      if (isItem(lines[next], lines[at]) || /^\s{2,}\S/.test(lines[next])) end = next + 1;
      else if (lines[next].trim()) break; // blank lines may stand between items
    }
    return end;
  }
  const quote = QUOTE.test(lines[at]);
  while (end < lines.length && lines[end].trim() && (quote ? QUOTE.test(lines[end]) : !begins(lines, end))) end += 1;
  return end;
}

/** Whether a line ends the paragraph above it. */
function begins(lines, at) {
  return [FENCE, HEADING, RULE, ITEM, QUOTE].some((pattern) => pattern.test(lines[at])) || isTable(lines, at);
}

const isTable = (lines, at) => lines[at].includes("|") && COLUMNS.test((lines[at + 1] ?? "").trim());
const isClosing = (line, fence) => line.trim().startsWith(fence) && !line.trim().replaceAll(fence[0], "");

/** Whether a line is an item of the list that another begins: numbers and marks do not mix. */
const isItem = (line, other) => ITEM.test(line) && /^\s*\d/.test(line) === /^\s*\d/.test(other);

function block(lines, depth) {
  const fence = FENCE.exec(lines[0]);
  if (fence) return code(lines.slice(1, isClosing(lines.at(-1), fence[1]) && lines.length > 1 ? -1 : undefined), fence[2]);
  const heading = HEADING.exec(lines[0]);
  if (heading) return auto(inline(el(`h${Math.min(heading[1].length + 3, 6)}`), heading[2].replace(/ #{1,6}$/, "")));
  if (RULE.test(lines[0])) return el("hr");
  const quoted = () => lines.map((line) => line.replace(QUOTE, ""));
  if (depth < DEPTH && QUOTE.test(lines[0])) return auto(inside(el("blockquote"), quoted(), depth));
  if (depth < DEPTH && ITEM.test(lines[0])) return list(lines, depth);
  if (isTable(lines, 0)) return table(lines);
  return auto(inline(el("p"), lines.join("\n")));
}

/** A node in the direction of its text, which a browser looks for anew with each child that is added later. */
const auto = (node) => Object.assign(node, { dir: "auto" });

function inside(node, lines, depth) {
  node.append(...blocks(lines).map((source) => block(source.split("\n"), depth + 1)));
  return node;
}

export function code(lines, name = "") {
  const text = lines.join("\n");
  const head = el("div", { class: "code-head" }, el("span", { class: "quiet" }, name), copyButton(() => text));
  return el("div", { class: "code-block", dir: "ltr" }, head, el("pre", { tabindex: 0, role: "group", label: "code" }, el("code", {}, text)));
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const numbered = /\d/.test(mark);
  const node = el(numbered ? "ol" : "ul", { start: numbered && parseInt(mark, 10) !== 1 ? parseInt(mark, 10) : false });
  const items = [];
  for (const line of lines) {
    const found = ITEM.exec(line);
    if (found && found[1].length < indent.length + 2) items.push([found[3]]);
    else items.at(-1).push(line.replace(new RegExp(`^\\s{0,${indent.length + mark.length + 1}}`), ""));
  }
  const made = items.map((own) => {
    const done = /^\[([ xX])\]\s/.exec(own[0]);
    if (done) own[0] = (done[1] === " " ? "☐ " : "☑ ") + own[0].slice(4);
    const item = inside(el("li"), own, depth);
    const first = item.firstElementChild;
    if (first?.tagName === "P") first.replaceWith(...first.childNodes);
    return item;
  });
  node.append(...made);
  return auto(node);
}

function table(lines) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  const row = (tag, line) => el("tr", {}, ...cells(line).map((cell) => auto(inline(el(tag), cell))));
  const body = el("tbody", {}, ...lines.slice(2).map((line) => row("td", line)));
  return el("div", { class: "wide", tabindex: 0, role: "group", label: "table" }, el("table", {}, el("thead", {}, row("th", lines[0])), body));
}

// The first that fits at a place, in this order. Marks close on the line they open on, so that the search stays linear.
const SPAN = new RegExp(
  [
    /\\([!-/:-@[-`{-~])/, // 1: as it is
    /(?<!`)(`+)([^`]|[^`][^\n]{0,2000}?[^`])\2(?!`)/, // 3: code
    /!?\[([^[\]\n]{0,500})\]\(([^()\s]{1,2000})\)/, // 4, 5: a link; pictures are links too, since none is loaded
    /\b(https?:\/\/[^\s<>()[\]"'`*]{1,2000}[^\s<>()[\]"'`*.,;:!?])/, // 6
    /(\*\*|__)(?=\S)([^\n]{0,2000}?\S)\7/, // 8: strong
    /([*_])(?=\S)([^\n*_]{0,2000}?[^\s*_])\9(?!\w)/, // 10: emphasis
    /~~(?=\S)([^\n~]{1,2000})~~/, // 11: struck out
    /(?: {2,9}|\\)?(\n)/, // 12: a new line
  ].map((pattern) => pattern.source).join("|"),
  "g",
);

/** Add the spans of a text to a node. */
function inline(node, text, depth = 0) {
  let at = 0;
  for (const found of depth < DEPTH ? text.matchAll(SPAN) : []) {
    if (/^[_]/.test(found[0]) && /\w/.test(text[found.index - 1] ?? "")) continue; // a_name_like_this
    node.append(text.slice(at, found.index), span(found, depth + 1));
    at = found.index + found[0].length;
  }
  node.append(text.slice(at));
  return node;
}

function span(found, depth) {
  const [, plain, , code, label, target, address, , strong, , emphasis, struck, line] = found;
  if (plain) return plain;
  if (code) return el("code", { dir: "ltr" }, code.length > 2 ? code.replace(/^ (.*) $/, "$1") : code);
  if (target) return link(inline(el("a"), label || target, depth), target) ?? found[0];
  if (address) return link(el("a", {}, address), address) ?? found[0];
  if (strong) return inline(el("strong"), strong, depth);
  if (emphasis) return inline(el("em"), emphasis, depth);
  if (struck) return inline(el("s"), struck, depth);
  return line ? el("br") : found[0];
}

/** The link to an address of the web or of mail; nothing for any other, which could do something. */
function link(node, address) {
  const opens = /^(https?:\/\/|mailto:)/i.test(address);
  return opens ? Object.assign(node, { href: address, target: "_blank", rel: "noopener noreferrer" }) : null;
}
