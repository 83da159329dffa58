// Panel "Voice": talk to a model, and see what each of its answers waited for.

import { announce, byId, make } from "./dom.js";
import { Talk } from "./talk.js";

const PARTS = [
  ["transcript_ms", "transcript"],
  ["endpoint_ms", "end of the turn"],
  ["first_words_ms", "first words"],
  ["first_audio_ms", "first audio"],
];
const SCALE_MS = 600; // of the bars, unless an answer takes longer

let talk = null;

export function setUp() {
  byId("talk").addEventListener("click", () => (talk ? talk.stop() : begin()));
}

/** Called once the models that converse are known. */
export function ready(models, { transcribes }) {
  const can = models.length > 0 && transcribes;
  byId("voice-none").hidden = can;
  byId("talk").disabled = !can || !navigator.mediaDevices;
  byId("voice-microphone-none").hidden = Boolean(navigator.mediaDevices);
}

function entry(kind, title) {
  byId("voice-empty").hidden = true;
  const text = make("p");
  const element = make("article", { class: `turn ${kind}` }, make("h3", {}, title), text);
  byId("talked").append(element);
  element.scrollIntoView({ block: "nearest" });
  return { element, text };
}

async function begin() {
  const entries = new Map(); // id of an item or a response -> its entry
  const find = (id, kind, title) => {
    if (!entries.has(id)) entries.set(id, entry(kind, title));
    return entries.get(id);
  };
  let last = null;
  talk = new Talk({
    model: byId("voice-model").value,
    instructions: byId("voice-instructions").value.trim() || undefined,
    turnDetection: turnDetection(byId("voice-turns").value),
    onState: (state) => (byId("voice-state").textContent = state),
    onPeak: (peak) => byId("voice-level").style.setProperty("--share", Math.sqrt(peak).toFixed(3)),
    onSaid: (id, text) => {
      if (text.trim()) find(id, "user", "You").text.textContent = text.trim();
    },
    onWords: (id, delta) => {
      last = find(id, "assistant", "Answer");
      last.text.append(delta);
      announce(delta);
    },
    onTiming: (id, times) => find(id, "assistant", "Answer").element.append(budget(times)),
    onCut: () => last?.element.append(make("p", { class: "receipt dim" }, "interrupted")),
  });
  talking(true);
  try {
    await talk.run();
  } catch (error) {
    byId("voice-state").textContent = "";
    entry("assistant", "Error").element.append(make("p", { class: "error", role: "alert" }, error.message));
  }
  talk = null;
  talking(false);
}

function turnDetection(chosen) {
  if (chosen === "silence") return { type: "server_vad" };
  return { type: "semantic_vad", eagerness: chosen };
}

/** The bars of one answer: milliseconds from the end of speech until each part was ready. */
function budget(times) {
  const scale = Math.max(SCALE_MS, times.sent_ms);
  const rows = PARTS.filter(([field]) => times[field] !== null).map(([field, name]) => {
    const fill = make("span", { class: "fill" });
    fill.style.setProperty("--share", (times[field] / scale).toFixed(4));
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, fill);
    return make("li", { "data-part": field }, make("span", {}, name), bar, make("b", {}, `${times[field]} ms`));
  });
  const total = `Answered ${times.sent_ms} ms after the end of speech`;
  return make("div", { class: "budget" }, make("p", { class: "receipt" }, total), make("ul", {}, ...rows));
}

function talking(is) {
  const button = byId("talk");
  button.textContent = is ? "Stop" : "Talk";
  button.setAttribute("aria-pressed", is);
  byId("voice-level").style.setProperty("--share", 0);
}
