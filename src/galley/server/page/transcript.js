// Panel "Transcript": transcripts of recordings and of the microphone.

import { events, json, request } from "./api.js";
import { announce, byId, duration, make, number } from "./dom.js";
import { Live } from "./live.js";

let models = [];
let live = null;

export function setUp() {
  const zone = byId("drop");
  const input = byId("recording");
  input.addEventListener("change", () => {
    if (input.files[0]) transcribe(input.files[0]);
    input.value = "";
  });
  for (const [name, over] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
    zone.addEventListener(name, (event) => {
      event.preventDefault();
      zone.classList.toggle("over", over);
    });
  }
  zone.addEventListener("drop", (event) => {
    const [file] = event.dataTransfer.files;
    if (file) transcribe(file);
  });
  byId("speak").addEventListener("click", () => (live ? live.stop() : listen()));
  byId("transcript-clear").addEventListener("click", clear);
}

/** Called once the models that transcribe are known. */
export function ready(found) {
  models = found;
  byId("transcript-none").hidden = models.length > 0;
  byId("recording").disabled = models.length === 0;
  byId("speak").disabled = models.length === 0 || !navigator.mediaDevices;
  byId("microphone-none").hidden = Boolean(navigator.mediaDevices);
}

function clear() {
  byId("said").replaceChildren();
  byId("said-empty").hidden = false;
  byId("transcript-clear").hidden = true;
}

/** A new entry of the transcript: {text, note} to fill in, and `fail` to show an error. */
function entry(title) {
  byId("said-empty").hidden = true;
  byId("transcript-clear").hidden = false;
  const text = make("p", { class: "said-text" });
  const note = make("p", { class: "receipt dim" });
  const element = make("article", { class: "turn" }, make("h3", {}, title), text, note);
  byId("said").append(element);
  element.scrollIntoView({ block: "nearest" });
  const fail = (message) => {
    note.remove();
    element.append(make("p", { class: "error", role: "alert" }, message));
  };
  return { element, text, note, fail };
}

async function transcribe(file) {
  if (!models.length) return;
  const { element, text, note, fail } = entry(file.name);
  const began = performance.now();
  const timed = byId("timed").checked;
  const form = new FormData();
  form.append("model", byId("transcript-model").value);
  if (timed) form.append("response_format", "verbose_json");
  else form.append("stream", "true");
  const language = byId("language").value.trim();
  if (language) form.append("language", language);
  form.append("file", file);
  note.textContent = "transcribing …";
  const options = { method: "POST", body: form };
  try {
    const { seconds, warnings } = await (timed ? readTimed(options, element, text) : readStream(options, text));
    announce(text.textContent, { end: true });
    const took = (performance.now() - began) / 1000;
    const speed = seconds ? ` · ${duration(seconds)} of audio, ${number(seconds / took)} times real time` : "";
    note.textContent = `done in ${duration(took)}${speed}`;
    for (const warning of warnings) element.append(make("p", { class: "receipt", role: "note" }, `⚠ ${warning}`));
  } catch (error) {
    fail(error.message);
  }
}

/** Each segment's text as it arrives; the audio's seconds, if the server reports them, and its warnings. */
async function readStream(options, text) {
  const answer = await request("v1/audio/transcriptions", options);
  let seconds = null;
  let warnings = [];
  for await (const { event } of events(answer)) {
    if (event.type === "transcript.text.delta") text.append(event.delta);
    if (event.type === "transcript.text.done") {
      text.textContent = event.text || "(no speech)";
      seconds = event.usage?.seconds ?? null;
      warnings = event.warnings ?? [];
    }
  }
  return { seconds, warnings };
}

async function readTimed(options, element, text) {
  const answer = await json("v1/audio/transcriptions", options);
  text.textContent = answer.segments.length ? "" : "(no speech)";
  const rows = answer.segments.map((segment) =>
    make(
      "tr",
      {},
      make("td", { class: "figure dim" }, clock(segment.start)),
      make("td", { class: "figure dim" }, clock(segment.end)),
      make("td", {}, segment.text.trim()),
    ),
  );
  const heads = ["from", "to", "text"].map((head) => make("th", { scope: "col" }, head));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows));
  if (rows.length) element.insertBefore(table, text.nextSibling);
  return { seconds: answer.duration, warnings: answer.warnings ?? [] };
}

/** 83.4 -> 1:23.4 */
function clock(seconds) {
  const rest = (seconds % 60).toFixed(1).padStart(4, "0");
  return `${Math.floor(seconds / 60)}:${rest}`;
}

async function listen() {
  const { text, note, fail } = entry("Microphone");
  const turns = new Map(); // id of the item -> its two spans
  const turn = (id) => {
    if (!turns.has(id)) {
      const [final, open] = [make("span"), make("span", { class: "open" })];
      turns.set(id, { final, open });
      text.append(final, open, " ");
    }
    return turns.get(id);
  };
  live = new Live({
    model: byId("transcript-model").value,
    language: byId("language").value.trim(),
    onState: (state) => (note.textContent = state),
    onPeak: (peak) => byId("level").style.setProperty("--share", Math.sqrt(peak).toFixed(3)),
    onFinal: (id, delta) => {
      turn(id).final.append(delta);
      turn(id).open.textContent = "";
      announce(delta);
    },
    onOpen: (id, tail) => (turn(id).open.textContent = tail),
    onTurn: (id, whole) => {
      turn(id).final.textContent = whole;
      turn(id).open.textContent = "";
      announce(" ", { end: true });
    },
  });
  listening(true);
  try {
    await live.run();
  } catch (error) {
    fail(error.message);
  }
  live = null;
  listening(false);
}

function listening(is) {
  const button = byId("speak");
  button.textContent = is ? "Stop" : "Speak";
  button.setAttribute("aria-pressed", is);
  byId("level").style.setProperty("--share", 0);
}
