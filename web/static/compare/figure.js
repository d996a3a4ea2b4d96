// The comparison's charts as figures: a line per run or a band with its median per group, and one trace of marks where
// values are not finite. web/compared.py draws the same figures on the server (a test compares the two).

import { logTicks } from "../chart/log_ticks.js";
import { escapeMarkup } from "../lib/format.js";
import { groupLooks } from "../lib/looks.js";
import { bandOf, firstLost, lineOf } from "./model.js";
import { extent, smoothLine } from "./smoothing.js";

/** @typedef {import("./runs.js").ShownRun} ShownRun */
/** @typedef {import("./model.js").Line} Line */

const FAINT = 0.25; // opacity of a line whose smoothed line is drawn above it
const AXES = { step: "step", tokens: "tokens", seconds: "training time (s, at each run's mean speed)" };

/**
 * @param {Figure} definition the chart without data
 * @param {ShownRun[]} runs
 * @param {Map<string, Buckets>} data by the run's key
 * @param {import("./model.js").View} view
 * @param {Colors} palette
 */
export function comparedFigure(
  definition,
  runs,
  data,
  { show, x, y, ticked, range, smooth = 0, metric = "", larger = false },
  palette,
) {
  const known = runs.flatMap((run) => {
    const series = data.get(run.key);
    return series ? [{ run, series }] : [];
  });
  const drawn = show === "groups" ? known.filter(({ run }) => ticked.has(run.key)) : known;
  const names = show === "groups" ? [...new Set(known.map(({ run }) => run.group))] : [];
  const groups = names.map((group) => ({ group, members: known.filter(({ run }) => run.group === group) }));
  const looks = bandLooks(
    groups.map(({ group, members }) => ({ group, of: members.map(({ run }) => run) })),
    palette,
  );
  const shade = groups.length > 3 ? "14" : "22";
  const worst = larger ? -Infinity : Infinity;
  const bands = groups.flatMap(({ members }, i) => bandTraces(bandOf(members, x, worst), looks[i], i, shade));
  const raw = drawn.flatMap(({ run, series }) => lineOf(run, series, x, y === "log", drawn.length) ?? []);
  const faint = smooth > 0 ? lineTraces(raw, runs, palette).map(({ trace }) => below(trace)) : [];
  const smoothed = () => drawn.flatMap(({ run, series }) => smoothLine(run, series, x, smooth, y === "log") ?? []);
  const lines = lineTraces(smooth > 0 ? smoothed() : raw, runs, palette);
  const lost = drawn.flatMap(({ run, series }) => firstLost(run, series, x) ?? []);
  const layout = structuredClone(definition.layout);
  const title = { text: AXES[/** @type {keyof AXES} */ (x)] };
  Object.assign(layout.xaxis ?? {}, { title, ...(range ? { range, autorange: false } : {}) });
  const shown = [...bands, ...faint, ...lines.map((line) => line.trace)];
  const ticks = y === "log" ? logTicks(...extent(shown)) : {};
  const named = metric && { title: { text: escapeMarkup(metric), standoff: 8 } };
  Object.assign(layout.yaxis ?? {}, { type: y }, ticks, named || {});
  const traces = [...shown, lostTrace(lost, palette)];
  return { figure: { data: /** @type {any[]} */ (traces), layout }, lines, looks };
}

/**
 * @param {Line[]} lines
 * @param {ShownRun[]} runs
 * @param {Colors} palette
 */
function lineTraces(lines, runs, palette) {
  const byKey = new Map(runs.map((run) => [run.key, run]));
  return lines.flatMap((line) => {
    const run = byKey.get(line.key);
    if (!run) return [];
    const color = palette[run.color] ?? palette.muted;
    const style = {
      color,
      dash: lines.length > 24 ? "solid" : run.dash,
      width: lines.length > 24 ? 1 : 1.6,
      simplify: true,
    };
    // Plotly writes `uid` into the class of the line's SVG group; crowd.js finds the group by this class
    const trace = {
      type: "scatter",
      uid: `run${run.key}`,
      mode: "lines",
      hoverinfo: "skip",
      name: escapeMarkup(run.label),
      line: style,
      ...xy(line),
    };
    return { key: run.key, label: run.label, color, ...xy(line), trace };
  });
}

/** The faint trace below a smoothed line. crowd.js hides both. @template {{uid: string}} T @param {T} trace */
const below = (trace) => ({ ...trace, uid: `${trace.uid} raw`, opacity: FAINT });

/** @param {Line} line */
const xy = ({ x, y }) => ({ x, y });

/**
 * @param {{x: Float64Array, low: Float32Array, median: Float32Array, high: Float32Array}} band
 * @param {{label: string, color: string, dash: string}} look label, colour and dash of the band's group
 * @param {number} i index of the group
 * @param {string} shade opacity of the fill, as two hexadecimal digits
 */
function bandTraces(band, { label, color, dash }, i, shade) {
  const line = { type: "scatter", mode: "lines", hoverinfo: "skip", connectgaps: false };
  const name = escapeMarkup(label);
  return [
    { ...line, uid: `area${i}`, ...outline(band), line: { width: 0 }, fill: "toself", fillcolor: `${color}${shade}` },
    { ...line, uid: `median${i}`, name, x: band.x, y: band.median, line: { color, dash, width: 2.4 } },
  ];
}

/**
 * An outline around each stretch where both edges of the band are finite: forward along the upper edge and back along the
 * lower edge, so that no area spans a gap.
 * @param {{x: Float64Array, low: Float32Array, high: Float32Array}} band
 */
function outline({ x: at, low, high }) {
  const [x, y] = [0, 1].map(() => /** @type {number[]} */ ([]));
  for (let begin = 0, i = 0; i <= at.length; i += 1) {
    if (i < at.length && Number.isFinite(low[i]) && Number.isFinite(high[i])) continue;
    if (begin < i) {
      x.push(...at.subarray(begin, i), ...at.slice(begin, i).reverse(), NaN);
      y.push(...high.subarray(begin, i), ...low.slice(begin, i).reverse(), NaN);
    }
    begin = i + 1;
  }
  return { x, y };
}

/**
 * The label (with the number of runs), the colour and the dash of each group.
 * @param {{group: string, of: ShownRun[]}[]} groups
 * @param {Colors} palette
 */
function bandLooks(groups, palette) {
  const looks = groupLooks(groups.map(({ group, of }) => [group, of]));
  return groups.map(({ group, of }, i) => ({
    label: `${group} (${of.length})`,
    color: palette[looks[i].color] ?? palette.muted,
    dash: looks[i].dash,
  }));
}

/**
 * @param {{x: number, text: string}[]} lost
 * @param {Colors} palette
 */
function lostTrace(lost, palette) {
  return {
    type: "scatter",
    uid: "lost",
    mode: "markers",
    yaxis: "y2",
    cliponaxis: false,
    x: lost.map((one) => one.x),
    y: lost.map(() => 0.97),
    hovertemplate: "%{text}<extra></extra>",
    text: lost.map((one) => escapeMarkup(one.text)),
    marker: { symbol: "x", size: 8, color: palette.danger },
  };
}
