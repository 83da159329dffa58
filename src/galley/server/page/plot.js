// A small line chart in SVG: the last five minutes of one or two series, redrawn once a second.

import { draw, make } from "./dom.js";
import { KEPT_SECONDS } from "./history.js";

const WIDTH = 420;
const HEIGHT = 132;
const LEFT = 44;
const BOTTOM = 18;
const TOP = 8;
const STEPS = [1, 2, 2.5, 5, 10];
const GAP_SECONDS = 4; // points further apart are not joined

export class Plot {
  /**
   * A figure for `title`.
   *
   * names: of the series, in the order of their colors; format: formats a value; about: description.
   */
  constructor({ title, about, names, format }) {
    this.title = title;
    this.names = names;
    this.format = format;
    this.points = [];
    this.svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
    this.values = names.map(() => make("b", {}, "–"));
    const legend = names.map((name, index) =>
      make("span", { class: `series-${index}` }, make("i", { "aria-hidden": "true" }), `${name} `, this.values[index]),
    );
    this.range = make("span", { class: "dim" });
    this.element = make(
      "figure",
      { class: "plot card" },
      make("figcaption", {}, make("h3", {}, title), make("p", { class: "dim" }, about)),
      make("div", { class: "legend" }, ...legend),
      this.svg,
      this.range,
    );
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#show(this.points.at(-1)));
  }

  /** Draw points, the oldest first: {ago: seconds, values: [number or null for each series]}. */
  update(points) {
    this.points = points;
    const known = points.flatMap(({ values }) => values).filter((value) => value != null);
    const step = niceStep(Math.max(...known, 0) / 3);
    const top = 3 * step;
    const x = (ago) => WIDTH - ((WIDTH - LEFT) * ago) / KEPT_SECONDS;
    const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - BOTTOM - TOP) * value) / top;
    const parts = [];
    for (let line = 0; line <= 3; line += 1) {
      const at = y(line * step);
      parts.push(
        draw("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: at, y2: at }),
        draw("text", { class: "tick", x: LEFT - 6, y: at + 3.5, "text-anchor": "end" }, this.format(line * step)),
      );
    }
    for (let minute = 0; minute <= 5; minute += 1) {
      const anchor = minute === 0 ? "end" : minute === 5 ? "start" : "middle";
      const attributes = { class: "tick", x: x(minute * 60), y: HEIGHT - 4, "text-anchor": anchor };
      parts.push(draw("text", attributes, minute === 0 ? "now" : `−${minute} min`));
    }
    this.names.forEach((_, series) => parts.push(...this.#lines(series, x, y)));
    this.marker = draw("line", { class: "marker", y1: TOP, y2: HEIGHT - BOTTOM, x1: -9, x2: -9 });
    this.svg.replaceChildren(...parts, this.marker);
    if (this.hovered === undefined) this.#show(points.at(-1));
    else this.#mark(this.hovered);
    this.#describe();
  }

  #lines(series, x, y) {
    const runs = [[]];
    let last = null;
    for (const { ago, values } of this.points) {
      const value = values[series];
      if (value == null) continue;
      if (last !== null && last - ago > GAP_SECONDS) runs.push([]);
      runs.at(-1).push([x(ago), y(value)]);
      last = ago;
    }
    return runs
      .filter((run) => run.length)
      .flatMap((run) => {
        const path = `M${run.map((point) => point.map((part) => part.toFixed(1)).join(" ")).join("L")}`;
        const [first, final] = [run[0][0], run.at(-1)[0]];
        const area = `${path}L${final.toFixed(1)} ${HEIGHT - BOTTOM}L${first.toFixed(1)} ${HEIGHT - BOTTOM}Z`;
        return [
          ...(series === 0 ? [draw("path", { class: "area series-0", d: area })] : []),
          draw("path", { class: `line series-${series}`, d: path }),
        ];
      });
  }

  #describe() {
    const ranges = this.names.map((name, series) => {
      const values = this.points.map((point) => point.values[series]).filter((value) => value != null);
      if (!values.length) return `${name}: no data yet`;
      const text = (value) => this.format(value);
      return `${name}: ${text(Math.min(...values))} to ${text(Math.max(...values))}`;
    });
    this.svg.setAttribute("aria-label", `${this.title}, last five minutes. ${ranges.join("; ")}`);
    this.range.textContent = ranges.join(" · ");
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    this.hovered = Math.max(0, (KEPT_SECONDS * (WIDTH - at)) / (WIDTH - LEFT));
    this.#mark(this.hovered);
  }

  #mark(ago) {
    const nearest = this.points.reduce(
      (best, point) => (best && Math.abs(best.ago - ago) < Math.abs(point.ago - ago) ? best : point),
      null,
    );
    if (!nearest) return;
    const at = WIDTH - ((WIDTH - LEFT) * nearest.ago) / KEPT_SECONDS;
    this.marker.setAttribute("x1", at);
    this.marker.setAttribute("x2", at);
    this.#show(nearest, true);
  }

  #show(point, hovered = false) {
    if (!hovered) {
      this.hovered = undefined;
      this.marker?.setAttribute("x1", -9);
      this.marker?.setAttribute("x2", -9);
    }
    this.values.forEach((element, series) => {
      element.textContent = this.format(point?.values[series] ?? null);
    });
  }
}

/** The least of 1, 2, 2.5, 5 and 10 times a power of ten that is not below `value`. */
function niceStep(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * STEPS.find((step) => step * power >= value * 0.999);
}
