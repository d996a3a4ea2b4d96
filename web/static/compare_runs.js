// The rows of the comparison's table: what they say of each run, and the small lines in them.

import { findAll, given } from "./dom.js";
import { runLooks } from "./looks.js";
import { colors } from "./theme.js";

/** @typedef {import("./compare_model.js").ComparedRun & {color: string, dash: string}} ShownRun */

/** @type {Record<string, string>} Plotly's names of dashes as SVG dash arrays */
const STROKES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

/**
 * What the rows say, and how the runs look.
 * @param {HTMLElement} root
 * @returns {ShownRun[]}
 */
export function readRuns(root) {
  const rows = findAll("tr[data-run]", HTMLTableRowElement, root);
  const palette = colors();
  const looks = runLooks(rows.map(({ dataset: { layer = "", map = "" } }) => ({ layer, map })), (color) => color in palette);
  return rows.map((row, i) => {
    const { layer = "", map = "", group = "", outcome = "", label = "", tokens, seconds } = row.dataset;
    const perStep = { step: 1, tokens: tokens ? Number(tokens) : null, seconds: seconds ? Number(seconds) : null };
    return { key: given(row, "run"), label, layer, map, group, outcome, perStep, ...looks[i] };
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
