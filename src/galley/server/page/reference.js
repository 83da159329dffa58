// Panel "API": the server's own documentation (/docs), fetched with the key, which a link could not send.

import { request } from "./api.js";
import { byId } from "./dom.js";

let loaded = false;

export async function shown() {
  if (loaded) return;
  loaded = true;
  try {
    const text = await (await request("docs")).text();
    // This page has its own style; drop that of the document.
    const page = new DOMParser().parseFromString(text.replace(/<style>.*?<\/style>/s, ""), "text/html");
    page.querySelector("h1")?.remove();
    byId("reference").replaceChildren(...page.body.children);
  } catch (error) {
    loaded = false;
    byId("reference").textContent = error.message;
  }
}
