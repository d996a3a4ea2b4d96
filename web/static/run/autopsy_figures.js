// The figures of an autopsy's findings: the largest magnitude in each module, and the losses of the counterfactuals.
// Numbers that no axis can show are marked at the chart's edge.

import { logTicks } from "../chart/log_ticks.js";
import { escapeMarkup, number } from "../lib/format.js";

const MOST_ROWS = 60;
const [LEFT, RIGHT, TOP] = [0.015, 0.985, 0.97]; // places of marks at the chart's edges
const BELOW = 0.06; // distance of marks that would cover one another
const ROOM = 0.06; // share of the axis that is kept free for marks at an edge
const LONGEST = 34; // characters of a module's name beside the axis

/** @param {JsonNumber | null} value */
const shown = (value) => (value !== null && Number(value) > 0 && Number.isFinite(Number(value)) ? Number(value) : NaN);

/** @param {JsonNumber} value */
const finite = (value) => (Number.isFinite(Number(value)) ? Number(value) : NaN);

/** @param {JsonNumber | null} value */
const isLost = (value) => value !== null && !Number.isFinite(Number(value));

/** @param {AutopsyModule} module */
const title = ({ module, pass }) =>
  pass === "forward" ? module || "the model" : module && module !== pass ? `${module} (${pass})` : pass;

/**
 * The modules of the chart: all of them, or the modules that are not finite and the largest others.
 * @param {AutopsyModule[]} modules
 */
export function shownModules(modules) {
  if (modules.length <= MOST_ROWS) return modules;
  /** @param {AutopsyModule} one */
  const size = ({ nonfinite, largest }) => (nonfinite > 0 || isLost(largest) ? Infinity : Number(largest ?? 0));
  const kept = new Set([...modules].sort((a, b) => size(b) - size(a)).slice(0, MOST_ROWS));
  return modules.filter((one) => kept.has(one));
}

/**
 * @param {Figure} figure the chart without data
 * @param {AutopsyModule[]} modules in the order of computation
 * @param {Colors} colors
 * @returns {Figure}
 */
export function modulesFigure({ data, layout }, modules, colors) {
  const rows = shownModules(modules);
  const names = rows.map(title);
  const y = rows.map((_, i) => i);
  const marks = [...edgeMarks(rows, names, "largest", colors.danger), ...edgeMarks(rows, names, "largest_float64", "")];
  /** @type {Record<string, () => Partial<Trace>>} */
  const filled = {
    float32: () => ({ x: rows.map((r) => shown(r.largest)), y, text: texts(rows, names, "largest") }),
    float64: () => ({ x: rows.map((r) => shown(r.largest_float64)), y, text: texts(rows, names, "largest_float64") }),
    lost: () => ({
      x: marks.map(() => RIGHT),
      y: marks.map(({ row }) => row),
      text: marks.map(({ text }) => text),
      marker: { size: 10, symbol: marks.map((m) => m.symbol), color: marks.map((m) => m.color || colors["line-1"]) },
      visible: marks.length > 0,
    }),
    zero: () => {
      const zeros = y.filter((i) => rows[i].largest === 0 && !rows[i].nonfinite);
      const text = zeros.map((i) => escapeMarkup(`${names[i]}: every number is 0`));
      return { x: zeros.map(() => LEFT), y: zeros, text, visible: zeros.length > 0 };
    },
  };
  const traces = data.map((template) => {
    const { field, value = NaN } = template.meta;
    if (field === "limit") return colored(template, colors, { x: [value, value], y: [-0.5, rows.length - 0.5] });
    return colored(template, colors, filled[field]());
  });
  const ticktext = names.map((name) => escapeMarkup(name.length > LONGEST ? `…${name.slice(1 - LONGEST)}` : name));
  const limits = data.flatMap(({ meta }) => (meta.field === "limit" ? [meta.value ?? NaN] : []));
  const xaxis = { ...layout.xaxis, range: logRange([...rows.flatMap(magnitudes), ...limits]) };
  return { data: traces, layout: { ...layout, xaxis, yaxis: { ...layout.yaxis, tickvals: y, ticktext } } };
}

/** @param {AutopsyModule} row */
const magnitudes = (row) => [shown(row.largest), shown(row.largest_float64)];

/**
 * The range of a logarithmic axis that shows these numbers and has room for marks at its edges.
 * @param {number[]} values
 */
function logRange(values) {
  const exponents = values.filter(Number.isFinite).map(Math.log10);
  const [low, high] = [Math.min(...exponents), Math.max(...exponents)];
  const room = ((high - low || 1) * ROOM) / (1 - 2 * ROOM);
  return [low - room, high + room];
}

/**
 * @param {AutopsyModule[]} rows
 * @param {string[]} names
 * @param {"largest" | "largest_float64"} field
 */
function texts(rows, names, field) {
  const precision = field === "largest" ? "float32" : "float64";
  return rows.map((row, i) => escapeMarkup(`${names[i]}: ${number(row[field])} in ${precision}`));
}

/**
 * The marks of modules with numbers that are not finite.
 * @param {AutopsyModule[]} rows
 * @param {string[]} names
 * @param {"largest" | "largest_float64"} field
 * @param {string} color
 */
function edgeMarks(rows, names, field, color) {
  return rows.flatMap((one, row) => {
    const count = field === "largest" ? one.nonfinite : 0;
    const value = one[field];
    if (!count && !isLost(value)) return [];
    const symbol = Number(value) === Infinity ? "triangle-up" : "x";
    const biggest = isLost(value) || value === null ? "" : `; the largest finite magnitude is ${number(value)}`;
    const rest = count && value === 0 ? "; no other number is above 0" : biggest;
    const many = count ? `${number(count)} number${count === 1 ? " is" : "s are"} not finite` : number(value);
    const text = `${names[row]}: ${many} in ${field === "largest" ? "float32" : "float64"}${rest}`;
    return [{ row, symbol, color, text: escapeMarkup(text) }];
  });
}

/**
 * @param {Figure} figure the chart without data
 * @param {(Counterfactual & {label: string, color: string})[]} tried each with its name and the name of its colour
 * @param {{step: number[], loss: number[]}} run the recorded losses around these curves
 * @param {Colors} colors
 * @returns {Figure}
 */
export function counterfactualsFigure({ data, layout }, tried, run, colors) {
  const known = tried.filter(({ lives }) => lives !== null);
  const numbers = [...known.flatMap(({ loss }) => loss.map(Number)), ...run.loss].filter(Number.isFinite);
  const log = numbers.every((value) => value > 0);
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const ticks = !log ? {} : high / low < 100 ? logTicks(low, high) : { dtick: Math.ceil(Math.log10(high / low) / 6) };
  const start = Math.min(...known.map(({ from_step: step }) => step));
  const died = known.filter(({ lives }) => !lives);
  /** @type {Record<string, (template: Trace) => Trace[]>} */
  const filled = {
    start: (template) => {
      const text = `all start after step ${number(start)}, before the first sign of trouble`;
      const line = { x: [start, start], y: [0, 1], text: [text, text], visible: known.length > 0 };
      return [colored(template, colors, line)];
    },
    recorded: (template) => [
      colored(template, colors, { x: run.step, y: run.loss.map(finite), visible: run.step.length > 0 }),
    ],
    curve: (template) => known.map((one) => curve(template, one, colors[one.color] ?? colors.muted)),
    died: (template) => {
      const text = died.map(({ label, step }) => escapeMarkup(`${label}: died at step ${number(step)}`));
      const marker = { ...template.marker, color: died.map((one) => colors[one.color] ?? colors.muted) };
      const x = died.map(({ step }) => step);
      const y = x.map((step, i) => TOP - BELOW * x.slice(0, i).filter((other) => other === step).length);
      return [{ ...template, x, y, text, marker, visible: died.length > 0 }];
    },
  };
  const traces = data.flatMap((template) => filled[template.meta.field](template));
  const yaxis = { ...layout.yaxis, type: log ? "log" : "linear", ...ticks, showticklabels: numbers.length > 0 };
  const steps = [start, ...known.map(({ step }) => step ?? start), ...run.step];
  const few = Math.max(...steps) - Math.min(...steps) < 8;
  return { data: traces, layout: { ...layout, xaxis: { ...layout.xaxis, ...(few && { dtick: 1 }) }, yaxis } };
}

/**
 * @param {Trace} template
 * @param {Counterfactual & {label: string}} one
 * @param {string} color
 * @returns {Trace}
 */
function curve(template, { label, change, steps, loss }, color) {
  const name = escapeMarkup(label);
  const hovertemplate = (template.hovertemplate ?? "").replace("{label}", () => name);
  const y = loss.map(finite);
  const dash = change === "unchanged" ? "dash" : "solid";
  const mode = steps.length === 1 ? "markers" : "lines";
  return {
    ...template,
    name,
    hovertemplate,
    mode,
    x: steps,
    y,
    line: { ...template.line, color, dash },
    marker: { color, size: 6 },
  };
}

/**
 * The template with its data, in the page's colours.
 * @param {Trace} template
 * @param {Colors} colors
 * @param {Partial<Trace>} filled
 * @returns {Trace}
 */
function colored(template, colors, filled) {
  const color = colors[template.meta.color ?? ""] ?? colors.muted;
  const line = template.line && { ...template.line, color };
  const marker = template.marker && { ...template.marker, color, ...filled.marker };
  return { ...template, ...filled, ...(line && { line }), ...(marker && { marker }) };
}
