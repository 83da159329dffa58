// The last five minutes of /metrics, fetched once a second whichever panel is shown.

import { request } from "./api.js";
import { parse } from "./prometheus.js";

export const KEPT_SECONDS = 300;
const PERIOD_MS = 1000;
const WANTED = /^galley_/;

/** Samples of the metrics, the oldest first: {at: ms of performance.now(), samples}. */
export const looks = [];

const listeners = [];

/** Call `listener` after each sample. */
export const onLook = (listener) => listeners.push(listener);

/** The newest samples; null before the first. */
export const newest = () => looks.at(-1)?.samples ?? null;

/** The sample from about `seconds` before another one, or the oldest if there is none that old. */
export function before(index, seconds) {
  const since = looks[index].at - seconds * 1000;
  let found = index;
  while (found > 0 && looks[found].at > since) found -= 1;
  return looks[found];
}

/** Fetch samples repeatedly. A failed request leaves a gap. */
export async function poll() {
  const began = performance.now();
  try {
    const text = await (await request("metrics")).text();
    const samples = parse(text);
    for (const name of samples.keys()) if (!WANTED.test(name)) samples.delete(name);
    const at = performance.now();
    looks.push({ at, samples });
    while (looks[0].at < at - (KEPT_SECONDS + 20) * 1000) looks.shift();
    for (const listener of listeners) listener();
  } catch {
    // The server is unreachable, which the state next to the tabs shows.
  }
  setTimeout(poll, Math.max(0, PERIOD_MS - (performance.now() - began)));
}
