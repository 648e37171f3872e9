// A request as it is made from a shell and from Python.

import { $, el, kept } from "./dom.js";
import { code } from "./markdown.js";

// Fields of a chat that the client's own method knows; all others go through `extra_body`.
const KNOWN = ["model", "messages", "temperature", "top_p", "max_tokens", "seed", "stop", "tools", "stream"];
const KEY = "TRANSEPT_API_KEY"; // where code finds the key, which it does not show
const LONG = 2000; // characters of a picture or a sound that code shows

export function showAsCode(route, body) {
  const dialog = $("code");
  const isLong = (value) => typeof value === "string" && value.startsWith("data:") && value.length > LONG;
  const whole = JSON.stringify(body);
  const cut = JSON.stringify(body, (_, value) => (isLong(value) ? `${value.slice(0, 60)}…` : value));
  const short = JSON.parse(cut);
  const keyed = kept("sessionStorage", "key") !== null;
  const snippets = [code(curl(route, short, keyed).split("\n"), "curl"), code(python(route, short, keyed).split("\n"), "Python")];
  const note = cut === whole ? [] : [el("p", { class: "quiet", word: "shortened" })];
  dialog.querySelector(".blocks").replaceChildren(...note, ...snippets);
  dialog.showModal();
}

const address = (route) => new URL(route, document.baseURI).href;

function curl(route, body, keyed) {
  const key = keyed ? [`  -H "Authorization: Bearer $${KEY}" \\`] : [];
  const data = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  return [`curl -N '${address(route)}' \\`, `  -H 'Content-Type: application/json' \\`, ...key, `  -d '${data}'`].join("\n");
}

function python(route, body, keyed) {
  const key = keyed ? `os.environ["${KEY}"]` : `"none"`;
  const start = keyed ? "import os\n\n" : "";
  if (route !== "v1/chat/completions") {
    const headers = `headers = {"Authorization": "Bearer " + ${key}}`;
    const call = `httpx.post("${address(route)}", json=body, headers=headers, timeout=None)`;
    return `${start}import httpx\n\nbody = ${literal(body)}\n${headers}\nanswer = ${call}\nprint(answer.raise_for_status().json())`;
  }
  const given = Object.entries(body).filter(([name]) => KNOWN.includes(name));
  const extra = Object.entries(body).filter(([name]) => !KNOWN.includes(name));
  if (extra.length) given.push(["extra_body", Object.fromEntries(extra)]);
  const fields = given.map(([name, value]) => `    ${name}=${literal(value, "    ")},\n`).join("");
  const client = `${start}import openai\n\nclient = openai.OpenAI(base_url="${address("v1")}", api_key=${key})\n`;
  const loop = `for chunk in client.chat.completions.create(\n${fields}):\n    for choice in chunk.choices:\n`;
  return `${client}${loop}        print(choice.delta.content or "", end="", flush=True)`;
}

/** A value of JSON as Python writes it. */
function literal(value, indent = "") {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const parts = Array.isArray(value)
    ? value.map((each) => inner + literal(each, inner))
    : Object.entries(value).map(([name, each]) => `${inner}${JSON.stringify(name)}: ${literal(each, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length ? `${open}\n${parts.join(",\n")},\n${indent}${close}` : open + close;
}
