// What the page adds to a bound figure: smoothing, another horizontal axis, and the cursor instead of Plotly's hover
// texts.

/** @import { Axis } from "./clock.js" */
/** @import { Smoothing } from "./smooth.js" */

import { STEPS } from "./clock.js";
import { lone, smoothed } from "./smooth.js";

const FAINT = 0.28;

/**
 * @param {Figure} figure a bound figure, which is changed in place
 * @param {{smooth: number, axis: Axis, states?: Map<number, Smoothing>, go?: boolean}} options
 *   `states`: the smoothing state of each trace, by index; replaced by the states from which the next points continue;
 *   `go`: whether smoothing starts from `states`
 * @returns {Figure}
 */
export function dress(figure, { smooth, axis, states = new Map(), go = false }) {
  const traces = [];
  for (const [i, trace] of figure.data.entries()) {
    const line = trace.mode === "lines" && ["last", "median"].includes(trace.meta.field);
    if (trace.x && trace.xaxis !== "x2") trace.x = shifted(trace.x, axis);
    if (trace.mode === "lines" || line) trace.hoverinfo = trace.meta.each ? "none" : "skip"; // Plotly still reports clicks with "none"
    if (trace.meta.each === "eigenvalue") trace.showlegend = false; // the page has one legend for all charts
    if (line) dots(trace);
    if (line && smooth > 0 && trace.y?.length) {
      const result = smoothed(trace.y, smooth, go ? states.get(i) : undefined);
      states.set(i, result.before);
      traces.push({ ...trace, opacity: FAINT, showlegend: false, hoverinfo: "skip" });
      trace.y = result.y;
    }
    traces.push(trace);
  }
  figure.data = traces;
  if (figure.layout.xaxis) figure.layout.xaxis = { ...figure.layout.xaxis, title: { text: axis.title } };
  return figure;
}

/**
 * @param {ArrayLike<number | null>} x
 * @param {Axis} axis
 */
function shifted(x, axis) {
  return axis === STEPS ? x : Array.from(x, (step) => (step === null ? null : axis.of(step)));
}

/** @param {Trace} trace */
function dots(trace) {
  const size = lone(trace.y ?? []);
  if (!size) return;
  trace.mode = "lines+markers";
  trace.marker = { ...trace.marker, size, color: trace.line?.color, line: { width: 0 } };
}
