// Panel "Chat": a conversation with a served language model, streamed with log-probabilities.

import { events, request } from "./api.js";
import { announce, byId, duration, make, number, percent } from "./dom.js";
import { Tokens } from "./tokens.js";

const ALTERNATIVES = 5;
// Tokens are rendered in batches at this interval, because a layout for each would be slow in long answers.
const SHOW_MS = 30;

/** The conversation so far: {role, content, reasoning_content}. */
let messages = [];
/** Aborts the answer in progress; null if there is none. */
let stopper = null;

export function setUp() {
  const input = byId("chat-input");
  byId("chat-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send(input.value);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send(input.value);
  });
  byId("chat-stop").addEventListener("click", () => stopper?.abort());
  byId("chat-new").addEventListener("click", begin);
  for (const example of document.querySelectorAll("#chat-examples button")) {
    example.addEventListener("click", () => send(example.textContent));
  }
  for (const radio of document.querySelectorAll("[name=tint]")) {
    radio.addEventListener("change", () => (byId("panel-chat").dataset.tint = radio.value));
  }
}

/** Called once the models that chat are known. */
export function ready(models) {
  byId("chat-none").hidden = models.length > 0;
  byId("chat-send").disabled = models.length === 0;
}

function begin() {
  stopper?.abort();
  messages = [];
  byId("log").replaceChildren();
  byId("chat-empty").hidden = false;
  byId("chat-input").focus();
}

async function send(written) {
  const text = written.trim();
  if (!text || stopper || byId("chat-send").disabled) return;
  byId("chat-input").value = "";
  byId("chat-empty").hidden = true;
  messages.push({ role: "user", content: text });
  say("user", "You", make("p", {}, text));
  const tokens = new Tokens("Answer; the arrow keys go from token to token");
  const receipt = make("p", { class: "receipt dim" });
  const thinking = new Thinking(tokens.element);
  const turn = say("assistant", byId("chat-model").value, tokens.element, receipt);
  turn.setAttribute("aria-busy", "true");
  stopper = new AbortController();
  busy(true);
  const answer = { content: "", began: performance.now(), first: null, last: null, usage: null, finish: null };
  try {
    await receive(answer, tokens, thinking);
    receipt.textContent = summary(answer, tokens);
  } catch (error) {
    const stopped = error.name === "AbortError";
    receipt.textContent = stopped ? `stopped · ${summary(answer, tokens)}` : "";
    if (!stopped) turn.append(make("p", { class: "error", role: "alert" }, error.message));
  }
  const thought = thinking.text ? { reasoning_content: thinking.text } : {};
  if (answer.content) messages.push({ role: "assistant", content: answer.content, ...thought });
  else messages.pop();
  announce("", { end: true });
  turn.removeAttribute("aria-busy");
  stopper = null;
  busy(false);
}

/** The model's thinking: shown while it thinks, collapsed once it answers. */
class Thinking {
  constructor(answer) {
    this.text = "";
    this.tokens = new Tokens("Thinking; the arrow keys go from token to token");
    this.element = make("details", { class: "thinking", open: true }, make("summary", {}, "Thinking"));
    this.element.append(this.tokens.element);
    this.answer = answer;
  }

  add(text, tokens) {
    if (!this.text) this.answer.before(this.element);
    this.text += text;
    this.tokens.add(tokens);
  }

  fold() {
    if (!this.element.contains(document.activeElement)) this.element.open = false;
  }
}

async function receive(answer, tokens, thinking) {
  const response = await request("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body()),
    signal: stopper.signal,
  });
  answer.last = answer.began;
  const come = [];
  let timer = null;
  const show = () => {
    timer = null;
    const log = byId("log");
    const follows = log.scrollTop + log.clientHeight >= log.scrollHeight - 40;
    const shown = come.splice(0);
    const thoughts = shown.filter(({ thought }) => thought);
    const said = shown.filter(({ thought }) => !thought);
    if (thoughts.length) {
      thinking.add(thoughts.map(({ thought }) => thought).join(""), thoughts.flatMap(({ list }) => list));
    }
    if (said.length) tokens.add(said.flatMap(({ list }) => list));
    if (said.some(({ text }) => text)) thinking.fold();
    if (follows) log.scrollTop = log.scrollHeight;
  };
  try {
    for await (const { event, at } of events(response)) {
      answer.usage = event.usage ?? answer.usage;
      const [choice] = event.choices;
      if (!choice) continue;
      answer.finish = choice.finish_reason ?? answer.finish;
      const text = choice.delta.content ?? "";
      const thought = choice.delta.reasoning_content ?? "";
      const entries = choice.logprobs?.content ?? [];
      if (!text && !thought && !entries.length) continue;
      if (thought && answer.first === null) announce("The model is thinking.", { end: true });
      answer.first ??= at;
      answer.content += text;
      come.push({ text, thought, list: tokensOf(text || thought, entries, at - answer.last) });
      timer ??= setTimeout(show, SHOW_MS);
      answer.last = at;
      announce(text);
    }
  } finally {
    clearTimeout(timer);
    show();
  }
}

function body() {
  const system = byId("chat-system").value.trim();
  const optional = (id) => (byId(id).value === "" ? undefined : Number(byId(id).value));
  return {
    model: byId("chat-model").value,
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    max_tokens: optional("chat-max-tokens"),
    temperature: optional("chat-temperature"),
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    top_logprobs: ALTERNATIVES,
  };
}

/**
 * The tokens of one chunk. Text is held back while it can be half a character or a stop string, so the
 * chunk's text can differ from that of its tokens; its last token then gets the text.
 */
function tokensOf(text, entries, ms) {
  if (!entries.length) return [{ text, token: text, probability: null, ms, others: [] }];
  const same = entries.map((entry) => entry.token).join("") === text;
  return entries.map((entry, index) => ({
    text: same ? entry.token : index === entries.length - 1 ? text : "",
    token: entry.token,
    probability: Math.exp(entry.logprob),
    ms: index === 0 ? ms : 0, // these came together
    others: entry.top_logprobs.map((other) => [other.token, Math.exp(other.logprob)]),
  }));
}

/** Statistics of the answer, in one line. */
function summary(answer, tokens) {
  const count = answer.usage?.completion_tokens ?? tokens.list.length;
  const seconds = (answer.last - answer.first) / 1000;
  const known = tokens.list.map((token) => token.probability).filter((value) => value !== null);
  const mean = Math.exp(known.reduce((total, value) => total + Math.log(value), 0) / known.length);
  const thought = answer.usage?.completion_tokens_details?.reasoning_tokens;
  const parts = [`${number(count)} tokens${thought ? `, ${number(thought)} of thinking` : ""}`];
  if (answer.first !== null) parts.push(`first after ${duration((answer.first - answer.began) / 1000)}`);
  if (seconds > 0 && count > 1) parts.push(`${number((count - 1) / seconds)} tokens/s`);
  if (known.length) parts.push(`mean probability ${percent(mean)}`);
  if (answer.finish === "length") parts.push("stopped at max tokens");
  return [...parts, ...receiptParts(answer.usage)].join(" · ");
}

/** The server's statistics of the request. */
function receiptParts(usage) {
  if (!usage) return [];
  const cached = usage.prompt_tokens_details?.cached_tokens;
  return [
    `${number(usage.prompt_tokens)} prompt tokens${cached ? `, ${number(cached)} cached` : ""}`,
    ...["queue", "prefill", "decode"]
      .filter((part) => usage[`${part}_ms`] !== undefined)
      .map((part) => `${part} ${duration(usage[`${part}_ms`] / 1000)}`),
    ...(usage.cost === undefined ? [] : [`cost ${usage.cost.toPrecision(3)}`]),
  ];
}

function say(role, name, ...children) {
  const turn = make("article", { class: `turn ${role}` }, make("h3", {}, name), ...children);
  const log = byId("log");
  log.append(turn);
  log.scrollTop = log.scrollHeight;
  return turn;
}

function busy(is) {
  const [send, stop] = [byId("chat-send"), byId("chat-stop")];
  const pressed = document.activeElement === (is ? send : stop);
  send.hidden = is;
  stop.hidden = !is;
  if (pressed) (is ? stop : byId("chat-input")).focus();
}
