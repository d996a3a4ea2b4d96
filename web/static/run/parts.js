// Replaces parts of the run page with the server's newest version.

import { findAll, freshPage } from "../lib/dom.js";
import { keepFolds } from "./folds.js";
import { refreshTimes } from "../lib/times.js";

export const REPLACED = "parts-replaced";

/**
 * Replaces parts that the server renders (divergence, result, environment, history) from a new copy of the page.
 * @param {string[] | null} names null for all parts
 */
export async function replaceParts(names) {
  const page = await freshPage();
  for (const part of page ? findAll("[data-part]", HTMLElement) : []) {
    if (names && !names.includes(part.dataset.part ?? "")) continue;
    const fresh = page?.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!fresh) continue;
    keepFolds(part, fresh);
    part.replaceWith(document.adoptNode(fresh));
  }
  refreshTimes();
  showNewest();
  dispatchEvent(new Event(REPLACED));
}

// The newest events are at the end of a long list.
export function showNewest() {
  for (const list of findAll("[data-timeline]", HTMLElement)) list.scrollTop = list.scrollHeight;
}
