// Puts series into the figures of web/figures.py, as web/binding.py does on the server (a test compares the two).
// data: series name -> buckets (see typed.js); items: what template traces are copied for.

import { escapeMarkup } from "./format.js";
import { band, median } from "./edges.js";
import { heat } from "./heat.js";
import { alertLines, marks, ranges } from "./marks.js";
import { eigenvalueItems, MAX_LINES, topEigenvalues } from "./pick.js";

export function bind(figure, data, { layer = 0, items = null, alerts = [], colors = {} } = {}) {
  const layout = structuredClone(figure.layout);
  const own = (layout.meta?.alerts ?? []).map((name) => name.replace("{layer}", layer));
  const context = { items: items ?? [], colors, log: layout.yaxis?.type === "log" };
  context.alerts = alerts.filter((alert) => own.includes(alert.series));
  const traces = [];
  for (const template of figure.data) {
    const { each, series = "" } = template.meta;
    const name = series.replace("{layer}", layer);
    for (const item of copies(each, items, data[name])) {
      const trace = copy(template, item, colors);
      const key = name.replace("{run}", item.key).replace("{map}", item.key);
      const filled = fill(trace, data[key], item, context);
      const marker = { ...trace.marker, ...filled.marker };
      traces.push({ ...trace, ...filled, ...(Object.keys(marker).length ? { marker } : {}) });
    }
  }
  return { data: traces, layout };
}

function copies(each, items, series) {
  if (!each) return [{}];
  if (each === "eigenvalue" && items === null) return series ? eigenvalueItems(topEigenvalues(series)) : [];
  return (items ?? []).slice(0, MAX_LINES);
}

function copy(template, item, colors) {
  const trace = structuredClone(template);
  if (item.key !== undefined) {
    for (const field of ["name", "hovertemplate"]) {
      for (const word of ["key", "label"]) {
        // a function, or "$&" in a run's name would be read as a pattern
        trace[field] = (trace[field] ?? "").replaceAll(`{${word}}`, () => escapeMarkup(item[word]));
      }
    }
  }
  if (item.color) trace.meta.color = item.color;
  const color = colors[trace.meta.color];
  for (const part of ["line", "marker"]) {
    if (color && trace[part]?.color) trace[part].color = color;
    if (item.dash && trace[part]?.dash) trace[part].dash = item.dash;
  }
  if (color && trace.fillcolor) trace.fillcolor = `${color}29`; // as #rrggbbaa, 16 %
  return trace;
}

function fill(trace, series, item, { items, alerts, log, colors }) {
  const { field, value, severity } = trace.meta;
  if (field === "alerts") return alertLines(alerts.filter((alert) => alert.severity === severity));
  if (field === "range" || field === "median_of") return ranges(trace.meta, items, colors);
  if (!series?.step.length) return { x: [], y: [], visible: field === "last" || field === "heat" };
  const { step } = series;
  if (field === "constant") return { x: [step[0], step[step.length - 1]], y: [value, value] };
  if (field === "nonfinite" || field === "nonpositive") return marks(series, field);
  if (field.startsWith("heat")) return heat(series, trace.meta);
  const y = line(series, field, item.column ?? 0, log);
  for (let i = 0; i < y.length; i += 1) if (!Number.isFinite(y[i]) || (log && y[i] <= 0)) y[i] = NaN;
  return { x: step, y };
}

function line(series, field, c, log) {
  if (field === "last") return column(series, c);
  if (field === "median") return median(series);
  const [low, high] = band(series, log);
  return field === "min" ? low : high;
}

function column({ step, width, last }, c) {
  const y = new Float32Array(step.length);
  for (let i = 0; i < y.length; i += 1) y[i] = last[i * width + c];
  return y;
}
