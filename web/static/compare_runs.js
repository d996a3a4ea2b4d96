// The rows of the comparison's table: what they say of each run, and the small lines in them.

import { findAll, given } from "./dom.js";
import { DASHES } from "./pick.js";

/** @typedef {import("./compare_model.js").ComparedRun & {color: string, dash: string}} ShownRun */

/** @type {Record<string, string>} Plotly's names of dashes as SVG dash arrays */
const STROKES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

/**
 * Colour by map, dash by place among the runs of that map.
 * @param {HTMLElement} root
 * @returns {ShownRun[]}
 */
export function readRuns(root) {
  /** @type {Record<string, number>} */
  const seen = {};
  return findAll("tr[data-run]", HTMLTableRowElement, root).map((row) => {
    const { map = "", group = "", outcome = "", label = "", tokens, seconds } = row.dataset;
    const place = (seen[map] = (seen[map] ?? -1) + 1);
    const perStep = { step: 1, tokens: tokens ? Number(tokens) : null, seconds: seconds ? Number(seconds) : null };
    return { key: given(row, "run"), label, map, group, outcome, perStep, color: `map-${map}`, dash: DASHES[place % DASHES.length] };
  });
}

/**
 * The small lines beside the runs' names, as the charts draw them.
 * @param {HTMLElement} root
 * @param {ShownRun[]} runs
 */
export function drawKeys(root, runs) {
  const places = new Map(findAll("[data-key]", SVGElement, root).map((place) => [place.dataset.key, place]));
  for (const { key, color, dash } of runs) places.get(key)?.replaceChildren(keyLine(`var(--${color}, var(--muted))`, dash));
}

/**
 * @param {string} color
 * @param {string} dash Plotly's name of it
 */
export function keyLine(color, dash) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const look = { x1: 0, y1: 4, x2: 28, y2: 4, stroke: color, "stroke-width": 2.5, "stroke-dasharray": STROKES[dash] };
  for (const [name, value] of Object.entries(look)) line.setAttribute(name, String(value));
  return line;
}
