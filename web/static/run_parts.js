// The parts of a run page that the server writes, taken anew.

import { findAll, freshPage } from "./dom.js";
import { refreshTimes } from "./times.js";

export const REPLACED = "parts-replaced";

/**
 * The server writes divergence, result, environment and history: they are taken from a fresh copy of the page.
 * @param {string[] | null} names null for all parts
 */
export async function replaceParts(names) {
  const page = await freshPage();
  for (const part of page ? findAll("[data-part]", HTMLElement) : []) {
    if (names && !names.includes(part.dataset.part ?? "")) continue;
    const fresh = page?.querySelector(`[data-part="${part.dataset.part}"]`);
    if (fresh) part.replaceWith(document.adoptNode(fresh));
  }
  refreshTimes();
  showNewest();
  dispatchEvent(new Event(REPLACED));
}

// The newest events are the last of a long list.
export function showNewest() {
  for (const list of findAll("[data-timeline]", HTMLElement)) list.scrollTop = list.scrollHeight;
}
