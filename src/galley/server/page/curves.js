// Panel "Activity": curves of the last five minutes.

import { byId, duration, make, number, percent } from "./dom.js";
import { before, looks, newest, onLook } from "./history.js";
import { Plot } from "./plot.js";
import { buckets, quantile, select, sum } from "./prometheus.js";

const RATE_SECONDS = 5;
const QUANTILE_SECONDS = 15;
const COST_SECONDS = 30;
const HOUR = 3600;

/** A number of tokens per second, requests or similar. */
const plain = (value) => number(value === null ? null : Number(value.toPrecision(3)));
const money = (value) => (value === null ? "–" : plain(value));

/** Each curve: its description, and its values at a sample. `at` has `gauge`, `rate` and `quantiles`. */
const CURVES = [
  {
    title: "Requests",
    about: "sequences running, and waiting in the queue",
    names: ["running", "waiting"],
    format: plain,
    values: (at) => [at.gauge("galley_requests_running"), at.gauge("galley_requests_waiting")],
  },
  {
    title: "Tokens per second",
    about: `generated, and computed prompt tokens; over ${RATE_SECONDS} s`,
    names: ["generated", "prompt"],
    format: plain,
    values: (at) => [
      at.rate("galley_generated_tokens_total", RATE_SECONDS),
      at.rate("galley_prefill_tokens_total", RATE_SECONDS),
    ],
  },
  {
    title: "KV cache",
    about: "share of blocks in use, and cached for prefixes",
    names: ["in use", "cached"],
    format: percent,
    values: (at) => {
      const total = at.gauge("galley_kv_blocks");
      const share = (state) => (total ? at.gauge("galley_kv_blocks", { state }) / total : null);
      return [share("used"), share("cached")];
    },
  },
  {
    title: "Time to first token",
    about: `from a request's arrival; over ${QUANTILE_SECONDS} s`,
    names: ["P50", "P95"],
    format: duration,
    values: (at) => at.quantiles("galley_time_to_first_token_seconds", QUANTILE_SECONDS),
  },
  {
    title: "Time between tokens",
    about: `within a sequence; over ${QUANTILE_SECONDS} s`,
    names: ["P50", "P95"],
    format: duration,
    values: (at) => {
      // The mean of each sequence, if the server does not count each token.
      const names = ["galley_inter_token_seconds", "galley_time_per_output_token_seconds"];
      const known = names.find((name) => at.samples.has(`${name}_bucket`));
      return at.quantiles(known ?? names[0], QUANTILE_SECONDS);
    },
  },
  {
    title: "Cost",
    about: `per million generated tokens, over ${COST_SECONDS} s; requires price_per_hour`,
    names: ["per million tokens"],
    format: money,
    values: (at) => {
      const cost = at.rate("galley_cost_total", COST_SECONDS);
      const tokens = at.rate("galley_generated_tokens_total", COST_SECONDS);
      return [cost === null || !tokens ? null : (1e6 * cost) / tokens];
    },
  },
];

let plots = [];

export function setUp() {
  plots = CURVES.map((curve) => new Plot(curve));
  byId("plots").append(...plots.map((plot) => plot.element));
  byId("curves-model").addEventListener("change", drawAll);
  onLook(() => {
    offerModels();
    drawAll();
  });
}

export const shown = () => drawAll();

/** One sample of the chosen model's metrics, and those before it. */
class At {
  constructor(index, model) {
    this.index = index;
    this.labels = model ? { model } : {};
    this.samples = looks[index].samples;
  }

  gauge(name, labels = {}) {
    return sum(this.samples, name, { ...labels, ...this.labels });
  }

  /** Rate of a counter per second; null at the first sample, and after a restart of the server. */
  rate(name, seconds) {
    const earlier = before(this.index, seconds);
    const now = this.gauge(name);
    if (now === null || earlier === looks[this.index]) return null;
    const rise = now - (sum(earlier.samples, name, this.labels) ?? 0);
    return rise < 0 ? null : (rise * 1000) / (looks[this.index].at - earlier.at);
  }

  quantiles(name, seconds) {
    const earlier = buckets(before(this.index, seconds).samples, name, this.labels);
    const now = buckets(this.samples, name, this.labels);
    return [0.5, 0.95].map((share) => quantile(share, earlier, now));
  }
}

/** Cache of computed values: name of the model -> sample -> values of all curves. */
const computed = new Map();

function valuesOf(index, model) {
  if (!computed.has(model)) computed.set(model, new WeakMap());
  const known = computed.get(model);
  const look = looks[index];
  if (!known.has(look)) {
    const at = new At(index, model);
    known.set(look, CURVES.map((curve) => curve.values(at)));
  }
  return known.get(look);
}

function drawAll() {
  if (byId("panel-curves").hidden || !looks.length) return;
  const model = byId("curves-model").value;
  const now = looks.at(-1).at;
  plots.forEach((plot, curve) => {
    const points = looks.map((look, index) => ({
      ago: (now - look.at) / 1000,
      values: valuesOf(index, model)[curve],
    }));
    plot.update(points.filter(({ ago }) => ago <= 300));
  });
  tellTotals(model);
}

function tellTotals(model) {
  const at = new At(looks.length - 1, model);
  const cost = at.rate("galley_cost_total", COST_SECONDS);
  const totals = [
    ["generated tokens", number(at.gauge("galley_generated_tokens_total"))],
    ["prompt tokens", number(at.gauge("galley_prompt_tokens_total"))],
    ["sequences ended", number(at.gauge("galley_finished_sequences_total"))],
    ["preemptions", number(at.gauge("galley_preemptions_total"))],
    ["engine restarts", number(at.gauge("galley_engine_restarts_total"))],
    ...(cost === null ? [] : [["cost per hour now", money(cost * HOUR)]]),
  ];
  byId("totals").replaceChildren(
    ...totals.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))),
  );
}

function offerModels() {
  const choice = byId("curves-model");
  const models = [
    ...new Set(select(newest(), "galley_requests_running").map(({ labels }) => labels.model)),
  ].sort();
  const offered = [...choice.options].slice(1).map((option) => option.value);
  if (models.join("\n") === offered.join("\n")) return;
  choice.replaceChildren(
    make("option", { value: "" }, "all models"),
    ...models.map((model) => make("option", { value: model }, model)),
  );
  choice.closest("label").hidden = models.length < 2;
}
