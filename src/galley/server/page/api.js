// The server's API: keys, errors and event streams.

import { byId } from "./dom.js";

const KEY = "galley-key"; // in sessionStorage: gone when the tab is closed

/** An error response, with the server's message. */
export class ApiError extends Error {
  constructor(status, message, retryAfter = null) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** The key that the user entered; "" without one. */
export const key = () => sessionStorage.getItem(KEY) ?? "";

/** Forget the key; the next 401 prompts for another. */
export function forgetKey() {
  sessionStorage.removeItem(KEY);
  byId("forget").hidden = true;
}

/**
 * fetch() of a path of this server, with the key. While the server answers 401, prompts for a key and
 * sends the request again.
 *
 * Throws ApiError for any other error.
 */
export async function request(path, options = {}) {
  for (;;) {
    const used = key();
    const headers = new Headers(options.headers);
    if (used) headers.set("Authorization", `Bearer ${used}`);
    const answer = await fetch(path, { cache: "no-store", ...options, headers });
    if (answer.ok) return answer;
    const refusal = await refusalOf(answer);
    if (answer.status !== 401) throw refusal;
    await newKey(used, refusal.message);
    if (options.signal?.aborted) throw new DOMException("Aborted", "AbortError");
  }
}

/** The parsed JSON of a path. */
export const json = async (path, options) => (await request(path, options)).json();

async function refusalOf(answer) {
  const text = await answer.text();
  let message = text || answer.statusText;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // not from the server itself, but for example from a proxy
  }
  return new ApiError(answer.status, message, answer.headers.get("Retry-After"));
}

let asking = null;

/** A key other than `refused`; all rejected requests wait for the same dialog. */
function newKey(refused, reason) {
  if (key() !== refused) return Promise.resolve();
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const input = byId("key-input");
    byId("key-reason").textContent = reason;
    input.value = "";
    dialog.oncancel = (event) => event.preventDefault();
    byId("key-form").onsubmit = (event) => {
      event.preventDefault();
      const typed = input.value.trim();
      if (!typed) return;
      sessionStorage.setItem(KEY, typed);
      byId("forget").hidden = false;
      dialog.close();
      asking = null;
      resolve();
    };
    dialog.showModal();
    input.focus();
  });
  return asking;
}

/**
 * The objects of a stream of server-sent events, each with its time of arrival.
 *
 * Throws ApiError for an event that is an error.
 */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const at = performance.now();
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
      const event = JSON.parse(line.slice("data: ".length));
      if (event.error) throw new ApiError(event.error.code, event.error.message);
      yield { event, at };
    }
  }
}

/**
 * A WebSocket to a path of this server. Browsers cannot send headers with it, so the key is sent as a
 * subprotocol, as OpenAI's browser clients do.
 */
export function socket(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = url.protocol.replace("http", "ws");
  const used = key();
  const protocols = ["realtime", ...(used ? [`openai-insecure-api-key.${used}`] : [])];
  return new WebSocket(url, protocols);
}
