// Requests to the server: whole answers, streams, the key, and errors as cards.

import { $, el, kept, keep, word } from "./dom.js";

/** What went wrong, in words for people. */
export class Failure extends Error {}
const failure = (message, code, request) => Object.assign(new Failure(message), { code, request });

/** JSON that someone has typed into the field of that name. */
export function parsed(text, field) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Failure(word("no-json", { field: word(field), reason: error.message }));
  }
}

/** The answer to a request as JSON; without a body it is a GET. */
export const ask = async (route, body, signal) => (await send(route, body, signal)).json();

/** The chunks of a streamed answer, as they come. */
export async function* stream(route, body, signal) {
  const response = await send(route, body, signal);
  const request = response.headers.get("x-request-id");
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read().catch(unreachable);
    if (done) throw failure(word("cut-off"), undefined, request);
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const chunk = JSON.parse(line.slice(6));
      if (chunk.error) throw failure(chunk.error.message, chunk.error.code, request);
      yield chunk;
    }
  }
}

async function send(route, body, signal) {
  const headers = body === undefined ? {} : { "Content-Type": "application/json" };
  const key = kept("sessionStorage", "key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const method = body === undefined ? "GET" : "POST";
  const response = await fetch(route, { method, headers, body: JSON.stringify(body), signal }).catch(unreachable);
  if (response.ok) return response;
  if (response.status === 401 && (await askForKey())) return send(route, body, signal);
  const found = await response.json().catch(() => ({}));
  const message = found.error?.message ?? word("status", { status: response.status });
  throw failure(message, found.error?.code, response.headers.get("x-request-id"));
}

function unreachable(error) {
  throw error.name === "AbortError" ? error : new Failure(word("unreachable"));
}

let asked = null; // requests that come meanwhile wait for the same key

/** Ask for a key, which is kept while the tab is open; whether there is one now. */
function askForKey() {
  asked ??= new Promise((resolve) => {
    const dialog = $("key");
    const field = dialog.querySelector("input");
    field.value = dialog.returnValue = "";
    dialog.onclose = () => {
      asked = null;
      if (dialog.returnValue) keep("sessionStorage", "key", field.value.trim());
      resolve(dialog.returnValue !== "");
    };
    dialog.showModal();
  });
  return asked;
}

/** An error as a card, which is said at once; `again` tries once more. */
export function trouble(error, again) {
  const known = error instanceof Failure;
  if (!known) console.error(error);
  const told = [error.code, error.request].filter(Boolean).join(" · ");
  const card = el("div", { class: "trouble", role: "alert" }, el("p", { dir: "auto" }, known ? error.message : word("failed")));
  if (told) card.append(el("p", { class: "quiet", dir: "ltr" }, told));
  if (again) card.append(el("button", { type: "button", word: "try-again", onclick: () => (card.remove(), again()) }));
  return card;
}
