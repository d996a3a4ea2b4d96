// Puts the data of series into the figures of web/charts. Each trace's `meta` states what the trace shows (see
// web/figures.py). web/binding.py does the same on the server; a test compares the two.

import { escapeMarkup } from "../lib/format.js";
import { band, median } from "./edges.js";
import { heat } from "./heat.js";
import { alertLines, marks, ranges } from "./marks.js";
import { eigenvalueItems, MAX_LINES, topEigenvalues } from "../lib/pick.js";
import { onPlane } from "./planes.js";

/**
 * @typedef {object} Context what all traces of a figure share
 * @property {(Item | RangeItem)[]} items
 * @property {AlertAnswer[]} alerts
 * @property {string[]} own the series whose alerts get a line
 * @property {number[] | null} order eigenvalues from a heat map's lowest row to its highest
 * @property {number} [per] number of rows of the series in one column of a heat map
 * @property {Colors} colors
 * @property {boolean} log
 * @property {number} eigenvalues number of eigenvalues in the layer; in a series with fewer columns, neighbours share a column
 */

/**
 * Fills in the figure's data. A template trace is copied once per item of `items`. By default, eigenvalue charts show the
 * largest eigenvalues.
 * @param {Figure} figure
 * @param {SeriesByName} data
 * @param {{layer?: number | string, items?: (Item | RangeItem)[] | null, alerts?: AlertAnswer[], colors?: Colors, everywhere?: boolean, order?: number[] | null, per?: number, eigenvalues?: number, bounded?: boolean}} [options]
 *   `layer`: the layer's number, or the id of one of its records; `everywhere`: also marks alerts of other charts,
 * without a line; `order`: order of a heat map's rows; `per`: rows of a series per column of the heat map, see heat.js;
 * `eigenvalues`: number of eigenvalues in the record; `bounded`: whether |eigenvalue| = 1 is a boundary of stability
 * @returns {Figure}
 */
export function bind(
  figure,
  data,
  {
    layer = 0,
    items = null,
    alerts = [],
    colors = {},
    everywhere = false,
    order = null,
    per,
    eigenvalues = 0,
    bounded = true,
  } = {},
) {
  const layout = structuredClone(figure.layout);
  const own = (layout.meta?.alerts ?? []).map((name) => name.replace("{layer}", String(layer)));
  const shown = everywhere ? alerts : alerts.filter((alert) => own.includes(alert.series));
  const context = {
    items: items ?? [],
    alerts: shown,
    own,
    colors,
    order,
    per,
    eigenvalues,
    log: layout.yaxis?.type === "log",
  };
  const traces = [];
  for (const template of figure.data) {
    const { each, series = "", top = series, unless = "" } = template.meta;
    const partner = data[(template.meta.with ?? unless).replace("{layer}", String(layer))];
    const ranked = { data: data[top.replace("{layer}", String(layer))], unless: unless ? partner : undefined };
    const name = series.replace("{layer}", String(layer));
    for (const item of copies(each, items, ranked, eigenvalues)) {
      const trace = copy(template, item, colors);
      if (!bounded) trace.name = template.meta.unbounded ?? trace.name ?? "";
      const of = String(item?.key);
      const key = name.replace("{run}", of).replace("{map}", of);
      const filled = fill(
        trace,
        { series: data[key], partner, column: columnOf(item?.column ?? 0, data[key], eigenvalues) },
        context,
      );
      const marker = { ...trace.marker, ...filled.marker };
      traces.push({ ...trace, ...filled, ...(Object.keys(marker).length ? { marker } : {}) });
    }
  }
  return { data: traces, layout };
}

/**
 * @param {string | undefined} each
 * @param {(Item | RangeItem)[] | null} items
 * @param {{data?: Series, unless?: Series}} ranked series whose largest eigenvalues are shown by default
 * @param {number} eigenvalues
 * @returns {(Item | null)[]}
 */
function copies(each, items, { data: series, unless }, eigenvalues) {
  if (!each) return [null];
  if (each === "eigenvalue" && items === null)
    return series ? eigenvalueItems(topEigenvalues(series, 8, unless).map((c) => firstOf(c, series, eigenvalues))) : [];
  return (items ?? []).filter((item) => "key" in item).slice(0, MAX_LINES);
}

/**
 * The column of an eigenvalue. In a series with fewer columns than eigenvalues, neighbouring eigenvalues share a column.
 * @param {number} eigenvalue
 * @param {Series | undefined} series
 * @param {number} eigenvalues of the layer
 */
export function columnOf(eigenvalue, series, eigenvalues) {
  return series && series.width < eigenvalues ? Math.floor((eigenvalue * series.width) / eigenvalues) : eigenvalue;
}

/** The first eigenvalue of a column. @param {number} c @param {Series} series @param {number} eigenvalues */
const firstOf = (c, { width }, eigenvalues) => (width < eigenvalues ? Math.floor((c * eigenvalues) / width) : c);

/**
 * @param {Trace} template
 * @param {Item | null} item
 * @param {Colors} colors
 */
function copy(template, item, colors) {
  const trace = structuredClone(template);
  for (const field of item ? /** @type {const} */ (["name", "hovertemplate"]) : []) {
    for (const word of /** @type {const} */ (["key", "label", "note"])) {
      // the replacement is a function, because "$&" in a run's name would be a pattern in a replacement string
      trace[field] = (trace[field] ?? "").replaceAll(`{${word}}`, () => escapeMarkup(item?.[word]));
    }
  }
  if (item?.color) trace.meta.color = item.color;
  const color = colors[trace.meta.color ?? ""] ?? (item?.color && colors.muted); // a map may have no colour of its own
  for (const part of [trace.line, trace.marker]) {
    if (color && part?.color) part.color = color;
  }
  if (item?.dash && trace.line?.dash) trace.line.dash = item.dash;
  if (color && trace.fillcolor) trace.fillcolor = `${color}29`; // the colour as #rrggbbaa with 16 % opacity
  return trace;
}

/**
 * @param {Trace} trace
 * @param {{series?: Series, partner?: Series, column: number}} from the trace's series, its partner series, the column of a line
 * @param {Context} context
 * @returns {Partial<Trace>}
 */
function fill(trace, { series, partner, column: c }, { items, alerts, own, log, colors, order, per }) {
  const { field, value, severity } = trace.meta;
  if (field === "alerts")
    return alertLines(
      alerts.filter((alert) => alert.severity === severity),
      own,
    );
  if (field === "range" || field === "median_of" || field === "zero_of")
    return ranges(
      trace.meta,
      items.filter((item) => "total" in item),
      colors,
    );
  if (trace.meta.plane) return onPlane(trace, series, partner, c, log);
  if (!series?.step.length)
    return { x: [], y: [], visible: (field === "last" || field === "heat") && !trace.meta.optional };
  const { step } = series;
  if (field === "constant") return { x: [step[0], step[step.length - 1]], y: [value, value] };
  if (field === "nonpositive" && !log) return { x: [], y: [], visible: false };
  if (field === "nonfinite" || field === "nonpositive" || field === "zero_weight") return marks(series, field, partner);
  if (field.startsWith("heat")) return heat(series, trace.meta, order, per, partner);
  const y = line(series, field, c, log);
  for (let i = 0; i < y.length; i += 1) if (!Number.isFinite(y[i]) || (log && y[i] <= 0)) y[i] = NaN;
  return { x: step, y };
}

/**
 * @param {Series} series
 * @param {string} field
 * @param {number} c
 * @param {boolean} log
 */
function line(series, field, c, log) {
  if (field === "last") return column(series, c);
  if (field === "median") return median(series);
  const [low, high] = band(series, log);
  return field === "min" ? low : high;
}

/**
 * @param {Series} series
 * @param {number} c
 */
function column(series, c) {
  if ("low" in series) return series.lines.get(c)?.slice() ?? new Float32Array(series.step.length).fill(NaN);
  const { step, width, last } = series;
  const y = new Float32Array(step.length);
  for (let i = 0; i < y.length; i += 1) y[i] = last[i * width + c];
  return y;
}
