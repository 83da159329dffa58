// The frame: tabs, the light and dark theme, the list of models, and the server's state.

import { forgetKey, json, key } from "./api.js";
import { byId, make } from "./dom.js";
import * as chat from "./chat.js";
import * as curves from "./curves.js";
import * as memory from "./memory.js";
import * as reference from "./reference.js";
import * as transcript from "./transcript.js";
import * as voice from "./voice.js";
import { poll } from "./history.js";

const PANELS = { chat, transcript, voice, curves, memory, reference };
const RETRY_MS = 2000;

const tabs = [...document.querySelectorAll("[role=tab]")];

function show(name, { focus = false } = {}) {
  for (const tab of tabs) {
    const chosen = tab.dataset.panel === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    byId(tab.getAttribute("aria-controls")).hidden = !chosen;
    if (chosen && focus) tab.focus();
  }
  PANELS[name].shown?.();
}

function setUpTabs() {
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => (location.hash = tab.dataset.panel));
    tab.addEventListener("keydown", (event) => {
      const last = tabs.length - 1;
      const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      const next = tabs[(to + tabs.length) % tabs.length];
      location.hash = next.dataset.panel;
      next.focus();
    });
  }
  const follow = () => {
    const name = location.hash.slice(1);
    // Other fragments are places within the reference.
    if (name in PANELS) show(name);
  };
  addEventListener("hashchange", follow);
  show("chat");
  follow();
}

function setUpTheme() {
  const root = document.documentElement;
  const dark = () =>
    (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) ===
    "dark";
  const button = byId("theme");
  const showState = () => button.setAttribute("aria-checked", dark());
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    localStorage.setItem("galley-theme", root.dataset.theme);
    showState();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showState);
  showState();
}

function setUpKey() {
  const button = byId("forget");
  button.hidden = !key();
  button.addEventListener("click", () => {
    forgetKey();
    location.reload();
  });
}

/** Fill a select with models; hide its label if there is nothing to choose. */
function offer(select, models) {
  select.replaceChildren(...models.map((model) => make("option", { value: model.id }, model.id)));
  select.closest("label").hidden = models.length < 2;
}

async function loadModels() {
  for (;;) {
    try {
      const models = (await json("v1/models")).data;
      // The tasks of a model that was never loaded are unknown.
      const which = (task) =>
        models.filter((model) => !model.tasks.length || model.tasks.includes(task));
      offer(byId("chat-model"), which("generate"));
      offer(byId("transcript-model"), which("transcribe"));
      chat.ready(which("generate"));
      transcript.ready(which("transcribe"));
      offer(byId("voice-model"), which("generate"));
      voice.ready(which("generate"), { transcribes: which("transcribe").length > 0 });
      return;
    } catch {
      // Loading or unreachable, which the state next to the tabs shows.
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
}

async function watchState() {
  const pill = byId("state");
  let state = "unreachable";
  try {
    const answer = await fetch("ready", { cache: "no-store" });
    state = (await answer.json()).status;
  } catch {
    // as it stands
  }
  if (pill.textContent !== state) pill.textContent = state;
  pill.dataset.state = state;
  setTimeout(watchState, RETRY_MS);
}

setUpTabs();
setUpTheme();
setUpKey();
for (const panel of Object.values(PANELS)) panel.setUp?.();
watchState();
loadModels();
poll();
