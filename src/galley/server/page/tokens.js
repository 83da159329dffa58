// An answer token by token: its text tinted, details of one token, and a table of all tokens.

import { byId, duration, make, percent } from "./dom.js";

/**
 * The tokens of one answer.
 *
 * A token is {text, probability, ms, others}: `ms` since the token before, `others` the likeliest tokens of
 * its position as [text, probability].
 */
export class Tokens {
  constructor(label) {
    this.list = [];
    this.chosen = -1;
    this.element = make("p", { class: "tokens", tabindex: "0", role: "group", "aria-label": label });
    this.element.addEventListener("pointerover", (event) => {
      const index = this.#indexOf(event.target);
      if (index >= 0) this.choose(index);
    });
    this.element.addEventListener("keydown", (event) => {
      const to = {
        ArrowRight: this.chosen + 1,
        ArrowLeft: this.chosen - 1,
        Home: 0,
        End: this.list.length - 1,
      }[event.key];
      if (to === undefined || !this.list[to]) return;
      event.preventDefault();
      this.choose(to, { announce: true });
    });
    this.element.addEventListener("focus", () => this.#inspect());
  }

  /** Append tokens. Shows details of the last one, unless the user has selected another. */
  add(tokens) {
    if (!tokens.length) return;
    const first = this.list.length;
    const follows = inspected === this && this.chosen === first - 1;
    for (const token of tokens) {
      const span = make("span", { class: "token", title: titleOf(token) }, token.text);
      span.style.setProperty("--doubt", (1 - (token.probability ?? 1)).toFixed(3));
      // A token of a tenth of a second or more is as dark as it gets.
      span.style.setProperty("--slow", Math.min(1, token.ms / 100).toFixed(3));
      this.list.push({ ...token, span });
    }
    this.element.append(...this.list.slice(first).map((token) => token.span));
    if (inspected === this) addRows(this.list, first);
    if (first === 0 || follows) this.choose(this.list.length - 1);
  }

  /** Show details of a token; `announce` announces it to a screen reader. */
  choose(index, { announce = false } = {}) {
    if (inspected !== this) this.#inspect();
    this.list[this.chosen]?.span.classList.remove("chosen");
    this.chosen = index;
    this.list[index].span.classList.add("chosen");
    showToken(this.list[index], index);
    byId("glass").setAttribute("aria-live", announce ? "polite" : "off");
  }

  #indexOf(element) {
    return this.list.findIndex((token) => token.span === element);
  }

  #inspect() {
    if (inspected === this) return;
    inspected?.list[inspected.chosen]?.span.classList.remove("chosen");
    inspected = this;
    byId("token-rows").replaceChildren();
    addRows(this.list, 0);
  }
}

let inspected = null;

function titleOf(token) {
  return `${visible(token.text)}  ${percent(token.probability)}, ${duration(token.ms / 1000)}`;
}

/** A token's text with visible white space. */
function visible(text) {
  if (text === "") return "(no text)";
  return text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

function showToken(token, index) {
  const others = token.others.map(([text, probability]) => {
    const bar = make("span", { class: "bar", "aria-hidden": "true" }, make("span", { class: "fill" }));
    bar.firstChild.style.setProperty("--share", probability.toFixed(4));
    const chosen = text === token.token;
    return make(
      "li",
      chosen ? { class: "chosen" } : {},
      make("code", {}, visible(text)),
      bar,
      make("span", { class: "figure" }, percent(probability)),
    );
  });
  byId("glass").replaceChildren(
    make(
      "p",
      { class: "glass-token" },
      make("code", {}, visible(token.token)),
      make("span", { class: "dim" }, `token ${index + 1}`),
    ),
    make(
      "dl",
      { class: "pair" },
      make("div", {}, make("dt", {}, "probability"), make("dd", {}, percent(token.probability))),
      make("div", {}, make("dt", {}, "since the token before"), make("dd", {}, duration(token.ms / 1000))),
    ),
    make("ul", { class: "others", "aria-label": "likeliest tokens here" }, ...others),
  );
}

/** A row for each token from position `first` on. */
function addRows(list, first) {
  const rows = byId("token-rows");
  const scroller = rows.closest(".scroll");
  const follows = scroller.scrollTop + scroller.clientHeight >= scroller.scrollHeight - 8;
  const added = list.slice(first).map((token, index) =>
    make(
      "tr",
      {},
      make("td", { class: "figure dim" }, String(first + index + 1)),
      make("td", {}, make("code", {}, visible(token.token))),
      make("td", { class: "figure" }, percent(token.probability)),
      make("td", { class: "figure" }, duration(token.ms / 1000)),
    ),
  );
  rows.append(...added);
  if (follows) scroller.scrollTop = scroller.scrollHeight;
}
