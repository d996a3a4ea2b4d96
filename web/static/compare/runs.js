// Reads the rows of the comparison's table, and draws the small lines in these rows and in the legend of groups.

import { findAll, given } from "../lib/dom.js";
import { runLooks } from "../lib/looks.js";
import { colors } from "../lib/theme.js";

/** @typedef {import("./model.js").ComparedRun & {color: string, dash: string}} ShownRun */

/** @type {Record<string, string>} Plotly's names of dashes as SVG dash arrays */
const STROKES = { solid: "", dash: "8 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "12 4", longdashdot: "12 3 2 3" };

/**
 * The runs that the rows describe, with their colours and dashes.
 * @param {HTMLElement} root
 * @returns {ShownRun[]}
 */
export function readRuns(root) {
  const rows = findAll("tr[data-run]", HTMLTableRowElement, root);
  const looks = runLooks(
    rows.map(({ dataset: { layer = "", map = "" } }) => ({ layer, map })),
    colors(),
  );
  return rows.map((row, i) => {
    const { layer = "", map = "", group = "", outcome = "", label = "", tokens, seconds } = row.dataset;
    const perStep = { step: 1, tokens: tokens ? Number(tokens) : null, seconds: seconds ? Number(seconds) : null };
    return { key: given(row, "run"), label, layer, map, group, outcome, perStep, ...looks[i] };
  });
}

/**
 * Draws the small line beside each run's name, in the same style as in the charts.
 * @param {HTMLElement} root
 * @param {ShownRun[]} runs
 */
export function drawKeys(root, runs) {
  const places = new Map(findAll("[data-key]", SVGElement, root).map((place) => [place.dataset.key, place]));
  for (const { key, color, dash } of runs)
    places.get(key)?.replaceChildren(keyLine(`var(--${color}, var(--muted))`, dash));
}

/**
 * @param {string} color
 * @param {string} dash Plotly's name of the dash
 */
export function keyLine(color, dash) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const look = { x1: 0, y1: 4, x2: 28, y2: 4, stroke: color, "stroke-width": 2.5, "stroke-dasharray": STROKES[dash] };
  for (const [name, value] of Object.entries(look)) line.setAttribute(name, String(value));
  return line;
}

/**
 * Draws the legend of the bands, outside the plot.
 * @param {HTMLElement} place
 * @param {{label: string, color: string, dash: string}[]} groups
 */
export function drawGroupKeys(place, groups) {
  place.replaceChildren(
    ...groups.map(({ label, color, dash }) => {
      const [item, svg] = [
        document.createElement("span"),
        document.createElementNS("http://www.w3.org/2000/svg", "svg"),
      ];
      for (const [name, value] of Object.entries({ width: 28, height: 8, "aria-hidden": "true" }))
        svg.setAttribute(name, String(value));
      svg.append(keyLine(color, dash));
      item.append(svg, ` ${label}`);
      return item;
    }),
  );
}
