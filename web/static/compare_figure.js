// Traces of the comparison's charts: a line per run, a band with its median per group, one trace for what is not finite.

import { keyLine } from "./compare_runs.js";
import { escapeMarkup } from "./format.js";
import { groupLooks } from "./looks.js";

/** @typedef {import("./compare_runs.js").ShownRun} ShownRun */
/** @typedef {import("./compare_model.js").Line} Line */

/**
 * @param {Line[]} lines
 * @param {ShownRun[]} runs
 * @param {Colors} palette
 */
export function lineTraces(lines, runs, palette) {
  const byKey = new Map(runs.map((run) => [run.key, run]));
  return lines.flatMap((line) => {
    const run = byKey.get(line.key);
    if (!run) return [];
    const color = palette[run.color] ?? palette.muted;
    const style = { color, dash: lines.length > 24 ? "solid" : run.dash, width: lines.length > 24 ? 1 : 1.6, simplify: true };
    // Plotly puts `uid` into the class of the line's group, by which it is found again
    const trace = { type: "scatter", uid: `run${run.key}`, mode: "lines", hoverinfo: "skip", name: escapeMarkup(run.label), line: style, ...xy(line) };
    return { key: run.key, label: run.label, color, ...xy(line), trace };
  });
}

/** @param {Line} line */
const xy = ({ x, y }) => ({ x, y });

/**
 * @param {{x: Float64Array, low: Float32Array, median: Float32Array, high: Float32Array}} band
 * @param {{label: string, color: string, dash: string}} look of its group
 * @param {number} i its place among the groups
 * @param {string} shade how much of its colour fills the band, as two hexadecimal digits
 */
export function bandTraces(band, { label, color, dash }, i, shade) {
  const line = { type: "scatter", mode: "lines", hoverinfo: "skip", connectgaps: false };
  const name = escapeMarkup(label);
  return [
    { ...line, uid: `area${i}`, ...outline(band), line: { width: 0 }, fill: "toself", fillcolor: `${color}${shade}` },
    { ...line, uid: `median${i}`, name, x: band.x, y: band.median, line: { color, dash, width: 2.4 } },
  ];
}

/**
 * Around each stretch where both edges are known, there along the upper one and back: an area must not span what is lost.
 * @param {{x: Float64Array, low: Float32Array, high: Float32Array}} band
 */
function outline({ x: at, low, high }) {
  const [x, y] = [0, 1].map(() => /** @type {number[]} */ ([]));
  for (let begin = 0, i = 0; i <= at.length; i += 1) {
    if (i < at.length && Number.isFinite(low[i]) && Number.isFinite(high[i])) continue;
    x.push(...at.subarray(begin, i), ...at.slice(begin, i).reverse(), NaN);
    y.push(...high.subarray(begin, i), ...low.slice(begin, i).reverse(), NaN);
    begin = i + 1;
  }
  return { x, y };
}

/**
 * The groups' names, numbers of runs, colours and dashes.
 * @param {{group: string, of: ShownRun[]}[]} groups
 * @param {Colors} palette
 */
export function bandLooks(groups, palette) {
  const looks = groupLooks(groups.map(({ group, of }) => [group, of]));
  return groups.map(({ group, of }, i) => ({ label: `${group} (${of.length})`, color: palette[looks[i].color] ?? palette.muted, dash: looks[i].dash }));
}

/**
 * The legend of the bands, outside of the plot.
 * @param {HTMLElement} place
 * @param {{label: string, color: string, dash: string}[]} groups
 */
export function drawGroupKeys(place, groups) {
  place.replaceChildren(...groups.map(({ label, color, dash }) => {
    const [item, svg] = [document.createElement("span"), document.createElementNS("http://www.w3.org/2000/svg", "svg")];
    for (const [name, value] of Object.entries({ width: 28, height: 8, "aria-hidden": "true" })) svg.setAttribute(name, String(value));
    svg.append(keyLine(color, dash));
    item.append(svg, ` ${label}`);
    return item;
  }));
}

/**
 * @param {{x: number, text: string}[]} lost
 * @param {Colors} palette
 */
export function lostTrace(lost, palette) {
  return {
    type: "scatter", uid: "lost", mode: "markers", yaxis: "y2", cliponaxis: false, x: lost.map((one) => one.x), y: lost.map(() => 0.97),
    hovertemplate: "%{text}<extra></extra>", text: lost.map((one) => escapeMarkup(one.text)), marker: { symbol: "x", size: 8, color: palette.danger },
  };
}
