// The search part of the form for a new run: reads the settings to draw and the rungs.

import { parseGrid, toNumber } from "./config_form.js";
import { find, findAll, given } from "../lib/dom.js";

/** @type {Record<string, string>} */
const DISTRIBUTIONS = { log: "log_uniform", log_uniform: "log_uniform", uniform: "uniform", integer: "integer" };

/**
 * The distributions in the text, by dotted path; one setting per line. A line that is not understood is passed on as it
 * is, and the server explains why it refuses it.
 * @param {string} text
 */
export function parseSpace(text) {
  /** @type {Record<string, Record<string, unknown>>} */
  const space = {};
  for (const line of text.split("\n")) {
    const [path, kind = "", ...rest] = line.trim().split(/\s+/);
    if (!path) continue;
    if (kind === "choice") space[path] = { distribution: "choice", values: parseGrid(rest.join(" ")) ?? [] };
    else {
      const [low, high] = rest
        .join(" ")
        .split(/[\s,]+|\.\./)
        .filter(Boolean)
        .map(toNumber);
      space[path] = { distribution: DISTRIBUTIONS[kind] ?? kind, low, high };
    }
  }
  return space;
}

/**
 * The search of the form; null if no setting is given.
 * @param {HTMLElement} form
 * @returns {Record<string, any> | null}
 */
export function searchOf(form) {
  const metric = find("[data-halving-field=metric]", HTMLSelectElement, form).value;
  find("[data-halving]", HTMLElement, form).hidden = !metric;
  const space = parseSpace(find("[data-search-space]", HTMLTextAreaElement, form).value);
  if (!Object.keys(space).length) return null;
  const search = { space, ...numbers("searchField") };
  if (!metric) return search;
  const { max_overflow_budget = null, ...halving } = numbers("halvingField");
  return { ...search, halving: { ...halving, max_overflow_budget } };

  /** @param {"searchField" | "halvingField"} name */
  function numbers(name) {
    const attribute = name === "searchField" ? "data-search-field" : "data-halving-field";
    const fields = findAll(`[${attribute}]`, HTMLElement, form).filter(
      (e) => e instanceof HTMLInputElement || e instanceof HTMLSelectElement,
    );
    const filled = fields.filter((e) => e.value.trim() !== "");
    /** @type {Record<string, any>} */
    const found = Object.fromEntries(filled.map((e) => [given(e, name), toNumber(e.value.trim())]));
    return found;
  }
}
