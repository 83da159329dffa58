// Creates and finds elements, and formats numbers.

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/**
 * A new element. Attributes whose names begin with "on" are listeners; children are texts or nodes.
 * Texts never become markup.
 */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A new element of a drawing. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A number with about three digits: 0.0123, 4.56, 78.9, 1,234. */
export function number(value) {
  if (value == null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 4;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

/** Seconds, as milliseconds below one. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  return seconds < 1 ? `${number(round(seconds * 1000, 3))} ms` : `${number(seconds)} s`;
}

/** Bytes in units of 1,024. */
export function bytes(count) {
  if (count == null || !Number.isFinite(count)) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (Math.abs(count) >= 1000 && power < units.length - 1) {
    count /= 1024;
    power += 1;
  }
  return `${number(round(count, 3))} ${units[power]}`;
}

/** A share of one, in percent. */
export function percent(share) {
  if (share == null || !Number.isFinite(share)) return "–";
  const value = share * 100;
  return `${value.toFixed(value >= 99.95 || value < 0.005 ? 0 : value >= 10 ? 1 : 2)}%`;
}

function round(value, digits) {
  return Number(value.toPrecision(digits));
}

const live = byId("live");
let unsaid = "";

/**
 * Announce streaming text to a screen reader, one sentence at a time, since single tokens would stutter.
 * `end` also announces the rest.
 */
export function announce(text, { end = false } = {}) {
  unsaid += text;
  const cut = end ? unsaid.length : unsaid.search(/[.!?\n][^.!?\n]*$/) + 1;
  if (cut > 0 && unsaid.slice(0, cut).trim()) live.textContent = unsaid.slice(0, cut);
  unsaid = unsaid.slice(cut);
}
