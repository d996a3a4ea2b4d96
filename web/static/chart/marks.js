// Markers at the chart's edge for values that no axis can show (NaN, infinities, values below a logarithmic axis);
// alerts; bars of ranges.

import { escapeMarkup, number } from "../lib/format.js";
import { kindAt, NONFINITE } from "../lib/nonfinite.js";
import { bit } from "./summary.js";

const SYMBOLS = ["x", "triangle-up", "triangle-down"]; // one marker symbol for each entry of NONFINITE
const EDGE = [0.97, 0.97, 0.03];
const LEFT_EDGE = 0.012;
const MAX_MARKERS = 100;
const ZERO_WEIGHT = "infinite: weight is 0";
const SIGNIFICANT = new Intl.NumberFormat("en-US");

/** @typedef {{step: number, row: number, kind: number, text: string}} Hit a marked row; `kind` as in NONFINITE */

/**
 * @param {Series} series
 * @param {"nonfinite" | "nonpositive" | "zero_weight"} field
 * @param {Series} [unless] gradient of a ratio; if the ratio is not finite but the gradient is, the weight is 0
 * @returns {Partial<Trace>}
 */
export function marks(series, field, unless) {
  const hits = [];
  for (let row = 0; row < series.step.length; row += 1) {
    const hit = field === "nonpositive" ? below(series, row) : lost(series, row, field === "zero_weight", unless);
    if (hit) hits.push(hit);
  }
  const shown = thin(hits);
  const marker = field !== "nonfinite" ? {} : { marker: { size: 9, symbol: shown.map((h) => SYMBOLS[h.kind]) } };
  const y = shown.map((h) => (field === "nonpositive" ? 0.03 : EDGE[h.kind]));
  return { x: shown.map((h) => h.step), y, text: shown.map((h) => h.text), visible: shown.length > 0, ...marker };
}

/**
 * @param {Series} series
 * @param {number} row
 * @param {boolean} harmless true: finds ratios that are infinite because their weight is 0; false: all other non-finite values
 * @param {Series} [unless]
 * @returns {Hit | null}
 */
function lost(series, row, harmless, unless) {
  const { step, width } = series;
  if ("low" in series && !series.kinds) return null;
  const known = unless?.step[row] === step[row] ? unless : null;
  let [kind, first, hits] = [-1, -1, 0];
  for (let c = 0; c < width; c += 1) {
    const k = kindAt(series, row, c);
    if (k < 0 || (known !== null && kindAt(known, row, c) < 0) !== harmless) continue;
    kind = Math.max(kind, k);
    if (first < 0) first = c;
    hits += 1;
  }
  if (!hits) return null;
  if (harmless)
    return { step: step[row], row, kind: 1, text: `step ${step[row]}: ${ZERO_WEIGHT} in ${which(first, hits)}` };
  const where = width === 1 ? "" : ` in ${which(first, hits)}`;
  return { step: step[row], row, kind, text: `step ${step[row]}: ${NONFINITE[kind]}${where}` };
}

/**
 * @param {Series} series
 * @param {number} row
 * @returns {Hit | null}
 */
function below(series, row) {
  const { step, width } = series;
  const bits = "low" in series ? series.below : null;
  if ("low" in series && (!bits || !(series.low[row] <= 0))) return null;
  let [first, hits, least] = [-1, 0, Infinity];
  for (let c = 0; c < width; c += 1) {
    const v = "low" in series ? series.low[row] : series.min[row * width + c];
    if (bits ? !bit(bits, c * step.length + row) : !(v <= 0)) continue;
    if (first < 0) first = c;
    hits += 1;
    least = Math.min(least, v);
  }
  if (!hits) return null;
  const what = width === 1 ? "value" : which(first, hits);
  return { step: step[row], row, kind: -1, text: `step ${step[row]}: ${what} at ${number(least, 6)}` };
}

/**
 * @param {number} first
 * @param {number} hits
 */
const which = (first, hits) => `eigenvalue ${first}${hits > 1 ? ` and ${hits - 1} more` : ""}`;

/**
 * The points to mark; if more than MAX_MARKERS, the first point of each uninterrupted stretch and evenly spaced points.
 * @param {Hit[]} hits
 */
function thin(hits) {
  if (hits.length <= MAX_MARKERS) return hits;
  const every = Math.ceil(hits.length / MAX_MARKERS);
  let begins = 0;
  return hits.filter((hit, i) => {
    const begin = (i === 0 || hit.row - hits[i - 1].row > 1) && (begins += 1) <= MAX_MARKERS;
    return begin || i % every === 0;
  });
}

/**
 * A vertical line per alert, with a diamond at the line's top; nulls separate the lines. An alert about a series that this
 * chart does not show has only a diamond, which is smaller. `customdata` is the alert's id.
 * @param {AlertAnswer[]} alerts
 * @param {string[]} own the series that this chart shows
 * @returns {Partial<Trace>}
 */
export function alertLines(alerts, own) {
  const newest = alerts.slice(-50);
  /** @param {AlertAnswer} alert */
  const shows = ({ series }) => own.includes(series);
  return {
    x: newest.flatMap(({ step }) => [step, step, null]),
    y: newest.flatMap((alert) => [shows(alert) ? 0 : null, 1, null]),
    text: newest.flatMap(({ step, message }) => ["", `step ${step}: ${escapeMarkup(message)}`, ""]),
    customdata: newest.flatMap(({ id }) => [null, id ?? null, null]),
    marker: { size: newest.flatMap((alert) => [0, shows(alert) ? 10 : 7, 0]) },
    visible: newest.length > 0,
  };
}

/**
 * @param {TraceMeta} meta
 * @param {RangeItem[]} items
 * @param {Colors} colors
 * @returns {Partial<Trace>}
 */
export function ranges({ field, low, high }, items, colors) {
  /** @param {RangeField} name */
  const numbers = (name) => {
    const values = items.map((item) => Number(item[name] ?? NaN));
    return Float64Array.from(values, (v) => (v >= 0 && Number.isFinite(v) ? v : NaN));
  };
  const y = items.map((item) => escapeMarkup(item.label));
  const ends = /** @type {const} */ (["min", "q05", "median", "max"]).flatMap((name) =>
    [...numbers(name)].filter((v) => v > 0),
  );
  const floor = 0.1 * Math.min(1, ...ends); // the position of zero on the logarithmic axis
  /** @param {Float64Array} values */
  const raised = (values) => values.map((v) => Math.max(v, floor));
  const median = numbers("median");
  if (field === "zero_of") {
    const atZero = y.filter((_, i) => median[i] === 0);
    const text = atZero.map((label) => `${label}: the median is exactly 0`);
    return { x: atZero.map(() => LEFT_EDGE), y: atZero, text, visible: atZero.length > 0 };
  }
  if (field === "median_of" || !low || !high) return { x: median.map((v) => (v > 0 ? v : NaN)), y };
  const [from, to] = [numbers(low), numbers(high)];
  const hovertext = items.map((item, i) => {
    const counts = `${SIGNIFICANT.format(item.finite)} of ${SIGNIFICANT.format(item.total)} finite`;
    return `${y[i]}: ${number(from[i], 3)} to ${number(to[i], 3)}, ${counts}`;
  });
  const marker = { color: items.map((item) => colors[item.color] ?? "#5b6577") };
  const base = raised(from);
  return { base, x: raised(to).map((v, i) => v - base[i]), y, hovertext, marker };
}
