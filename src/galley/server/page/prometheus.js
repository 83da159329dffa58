// Parser of Prometheus' text format (version 0.0.4), with sums, rates and quantiles.

const SAMPLE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/g;
const ESCAPES = { "\\n": "\n", '\\"': '"', "\\\\": "\\" };

/** The samples of a page: name -> [{labels, value}]. */
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    if (!line || line.startsWith("#")) continue;
    const match = SAMPLE.exec(line);
    if (!match) continue;
    const [, name, inside = "", written] = match;
    const labels = {};
    for (const [, label, value] of inside.matchAll(LABEL)) {
      labels[label] = value.replace(/\\[n"\\]/g, (escape) => ESCAPES[escape]);
    }
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ labels, value: toNumber(written) });
  }
  return samples;
}

function toNumber(written) {
  return written === "+Inf" ? Infinity : written === "-Inf" ? -Infinity : Number(written);
}

/** The samples of a metric whose labels have all these values. */
export function select(samples, name, wanted = {}) {
  const fits = ({ labels }) =>
    Object.entries(wanted).every(([label, value]) => labels[label] === value);
  return (samples.get(name) ?? []).filter(fits);
}

/** Their sum; null if the server has no such metric. */
export function sum(samples, name, wanted = {}) {
  const found = select(samples, name, wanted);
  return found.length ? found.reduce((total, { value }) => total + value, 0) : null;
}

/** Cumulative counts of a histogram by upper bound, all series of it together: [[bound, count]]. */
export function buckets(samples, name, wanted = {}) {
  const counts = new Map();
  for (const { labels, value } of select(samples, `${name}_bucket`, wanted)) {
    const bound = toNumber(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return [...counts].sort(([one], [other]) => one - other);
}

/**
 * A quantile of a histogram between two samples, by linear interpolation within a bucket, as in
 * Prometheus' histogram_quantile. null if there were no observations.
 */
export function quantile(share, before, after) {
  const earlier = new Map(before);
  const seen = after.map(([bound, count]) => [bound, count - (earlier.get(bound) ?? 0)]);
  const total = seen.at(-1)?.[1] ?? 0;
  if (total <= 0) return null;
  const rank = share * total;
  let [low, below] = [0, 0];
  for (const [bound, count] of seen) {
    if (count >= rank) {
      if (bound === Infinity) return low;
      return low + ((bound - low) * (rank - below)) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return low;
}
