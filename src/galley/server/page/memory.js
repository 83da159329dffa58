// Panel "Memory": use of the machine's memory, use of each KV cache, and the duration of the start.

import { byId, bytes, duration, make, number, percent } from "./dom.js";
import { newest, onLook } from "./history.js";
import { select, sum } from "./prometheus.js";

const PARTS = { kv: "KV cache" };
const NAMES = {
  server: "server",
  engine: "engine",
  text: "text workers",
  text_workers: "text workers",
};

export function setUp() {
  onLook(update);
}

export const shown = () => update();

function update() {
  const samples = newest();
  if (byId("panel-memory").hidden || !samples) return;
  const cards = [machine(samples), ...models(samples).flatMap((model) => [
    ledger(samples, model),
    cache(samples, model),
    start(samples, model),
  ])];
  byId("ledger").replaceChildren(...cards.filter(Boolean));
}

/** Names of the models that the metrics know, in order. */
function models(samples) {
  return [...new Set(select(samples, "galley_requests_running").map(({ labels }) => labels.model))].sort();
}

/** A card with a bar and a table of the same data. `parts`: [name, value, class]; total: the whole bar. */
function card({ title, about, parts, total, format }) {
  const bar = make("div", { class: "stack", "aria-hidden": "true" });
  const rows = [];
  for (const [name, value, kind] of parts) {
    const piece = make("span", { class: kind });
    piece.style.setProperty("--share", total > 0 ? value / total : 0);
    bar.append(piece);
    rows.push(
      make(
        "tr",
        {},
        make("th", { scope: "row" }, make("i", { class: kind, "aria-hidden": "true" }), name),
        make("td", { class: "figure" }, format(value)),
        make("td", { class: "figure dim" }, percent(total > 0 ? value / total : null)),
      ),
    );
  }
  return make(
    "section",
    { class: "card" },
    make("h3", {}, title),
    make("p", { class: "dim" }, about),
    bar,
    make("table", { class: "parts" }, make("tbody", {}, ...rows)),
  );
}

function machine(samples) {
  const limit = sum(samples, "galley_memory_limit_bytes");
  const available = sum(samples, "galley_memory_available_bytes");
  if (limit === null || available === null) return null;
  const used = limit - available;
  const held = select(samples, "galley_process_resident_bytes")
    .map(({ labels, value }) => [[NAMES[labels.process] ?? labels.process, labels.model].filter(Boolean).join(" · "), value])
    .filter(([, value]) => value > 0)
    .sort(([, one], [, other]) => other - one);
  const ours = held.reduce((total, [, value]) => total + value, 0);
  // Pages that processes share count for each of them, so their sum can exceed the memory in use.
  const rest = held.length ? Math.max(0, used - ours) : used;
  const parts = held.map(([name, value], index) => [name, value, `part-${index % 6}`]);
  const total = Math.max(limit, ours + rest + available);
  return card({
    title: "This machine",
    about: `${bytes(available)} of ${bytes(limit)} available`,
    parts: [...parts, [held.length ? "others" : "taken", rest, "part-rest"], ["available", available, "part-free"]],
    total,
    format: bytes,
  });
}

/** The memory planned for the model before its weights were read. */
function ledger(samples, model) {
  const planned = select(samples, "galley_planned_memory_bytes", { model });
  const available = planned.find(({ labels }) => labels.part === "available")?.value;
  if (available !== undefined) {
    const parts = planned
      .filter(({ labels }) => labels.part !== "available")
      .map(({ labels, value }, index) => [PARTS[labels.part] ?? labels.part, value, `part-${index % 6}`]);
    const total = parts.reduce((whole, [, value]) => whole + value, 0);
    return card({
      title: `${model}: memory ledger`,
      about: `planned before the weights were loaded: ${bytes(total)} of ${bytes(available)} available`,
      parts: [...parts, ["left", Math.max(0, available - total), "part-free"]],
      total: Math.max(available, total),
      format: bytes,
    });
  }
  const weights = sum(samples, "galley_model_weight_bytes", { model });
  if (weights === null) return null;
  const limit = sum(samples, "galley_memory_limit_bytes") ?? weights;
  return card({
    title: `${model}: weights`,
    about: "read once per step",
    parts: [["weights", weights, "part-0"]],
    total: limit,
    format: bytes,
  });
}

function cache(samples, model) {
  const blocks = (state) => sum(samples, "galley_kv_blocks", { model, state }) ?? 0;
  const total = blocks("used") + blocks("cached") + blocks("free");
  if (!total) return null;
  const tokens = sum(samples, "galley_kv_cache_tokens", { model });
  return card({
    title: `${model}: KV cache`,
    about: tokens === null ? "blocks" : `room for ${number(tokens)} tokens, in blocks`,
    parts: [
      ["in use", blocks("used"), "part-0"],
      ["cached for prefixes", blocks("cached"), "part-1"],
      ["free", blocks("free"), "part-free"],
    ],
    total,
    format: number,
  });
}

function start(samples, model) {
  const phases = select(samples, "galley_startup_phase_seconds", { model });
  const total = phases.find(({ labels }) => labels.phase === "ready")?.value;
  const parts = phases
    .filter(({ labels }) => labels.phase !== "ready")
    .map(({ labels, value }, index) => [labels.phase, value, `part-${index % 6}`]);
  if (!parts.length) return null;
  const spent = parts.reduce((whole, [, value]) => whole + value, 0);
  return card({
    title: `${model}: start`,
    about: `ready after ${duration(total ?? spent)}; duration of each phase of the latest start`,
    parts,
    total: total ?? spent,
    format: duration,
  });
}
