// What no axis can show, as markers at the chart's edge: NaN, infinities, values below a logarithmic axis; alerts; ranges.

import { escapeMarkup, number } from "./format.js";

export const NONFINITE = ["NaN", "Infinity", "-Infinity"];
const SYMBOLS = ["x", "triangle-up", "triangle-down"];
const EDGE = [0.97, 0.97, 0.03];
const MAX_MARKERS = 100;
const SIGNIFICANT = new Intl.NumberFormat("en-US");

// -1 finite throughout, else 0 NaN (or a bucket that recovered), 1 +Inf, 2 -Inf.
export function kindOf(last, nonfinite) {
  if (last === Infinity) return 1;
  if (last === -Infinity) return 2;
  return nonfinite > 0 ? 0 : -1;
}

export function marks(series, field) {
  const hits = [];
  for (let row = 0; row < series.step.length; row += 1) {
    const hit = field === "nonpositive" ? below(series, row) : nonfinite(series, row);
    if (hit) hits.push({ ...hit, row });
  }
  const shown = thin(hits);
  const marker = field === "nonpositive" ? {} : { marker: { size: 9, symbol: shown.map((h) => SYMBOLS[h.kind]) } };
  const y = shown.map((h) => (field === "nonpositive" ? 0.03 : EDGE[h.kind]));
  return { x: shown.map((h) => h.step), y, text: shown.map((h) => h.text), visible: shown.length > 0, ...marker };
}

function nonfinite({ step, width, last, nonfinite: count }, row) {
  let [kind, first, hits] = [-1, -1, 0];
  for (let c = 0; c < width; c += 1) {
    const k = kindOf(last[row * width + c], count[row * width + c]);
    if (k < 0) continue;
    kind = Math.max(kind, k);
    if (first < 0) first = c;
    hits += 1;
  }
  if (!hits) return null;
  const where = width === 1 ? "" : ` in ${which(first, hits)}`;
  return { step: step[row], kind, text: `step ${step[row]}: ${NONFINITE[kind]}${where}` };
}

function below({ step, width, min }, row) {
  let [first, hits, least] = [-1, 0, Infinity];
  for (let c = 0; c < width; c += 1) {
    const v = min[row * width + c];
    if (!(v <= 0)) continue;
    if (first < 0) first = c;
    hits += 1;
    least = Math.min(least, v);
  }
  if (!hits) return null;
  const what = width === 1 ? "value" : which(first, hits);
  return { step: step[row], text: `step ${step[row]}: ${what} at ${number(least, 6)}` };
}

const which = (first, hits) => `eigenvalue ${first}${hits > 1 ? ` and ${hits - 1} more` : ""}`;

// All of them, or, beyond MAX_MARKERS, the beginnings of stretches and evenly spaced ones.
function thin(hits) {
  if (hits.length <= MAX_MARKERS) return hits;
  const every = Math.ceil(hits.length / MAX_MARKERS);
  let begins = 0;
  return hits.filter((hit, i) => {
    const begin = (i === 0 || hit.row - hits[i - 1].row > 1) && (begins += 1) <= MAX_MARKERS;
    return begin || i % every === 0;
  });
}

// One vertical line per alert, broken by nulls, with a diamond at its top.
export function alertLines(alerts) {
  const out = { x: [], y: [], text: [], marker: { symbol: "diamond", size: [] }, visible: alerts.length > 0 };
  for (const { step, message } of alerts.slice(-50)) {
    out.x.push(step, step, null);
    out.y.push(0, 1, null);
    out.text.push("", `step ${step}: ${escapeMarkup(message)}`, "");
    out.marker.size.push(0, 10, 0);
  }
  return out;
}

export function ranges({ field, low, high }, items, colors) {
  const numbers = (name) => Float64Array.from(items, (i) => (Number(i[name] ?? NaN) >= 0 && isFinite(i[name]) ? Number(i[name]) : NaN));
  const y = items.map((item) => escapeMarkup(item.label));
  const ends = ["min", "q05", "median", "max"].flatMap((name) => [...numbers(name)].filter((v) => v > 0));
  const floor = 0.1 * Math.min(1, ...ends); // where zero is drawn on the logarithmic axis
  const raised = (values) => values.map((v) => Math.max(v, floor));
  if (field === "median_of") return { x: raised(numbers("median")), y };
  const [from, to] = [numbers(low), numbers(high)];
  const hovertext = items.map((item, i) => {
    const counts = `${SIGNIFICANT.format(item.finite)} of ${SIGNIFICANT.format(item.total)} finite`;
    return `${y[i]}: ${number(from[i], 3)} to ${number(to[i], 3)}, ${counts}`;
  });
  const marker = { color: items.map((item) => colors[item.color] ?? "#5b6577") };
  const base = raised(from);
  return { base, x: raised(to).map((v, i) => v - base[i]), y, hovertext, marker };
}
