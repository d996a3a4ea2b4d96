// One cursor for all charts of a run page: a line at a step, with the values of each chart's lines at this step beside the
// chart. The cursor follows the pointer and the arrow keys.

/** @import { Chart } from "../chart/chart.js" */
/** @import { RunCharts } from "./charts.js" */

import { nearest } from "./clock.js";
import { showBeside, showInCaption } from "./reading.js";
import { readout } from "./readout.js";

export class Cursor {
  /** @type {number | null} the step under the cursor */
  step = null;
  /** @type {Chart | null} the chart that is read: the last one under the pointer */
  read = null;
  /** @type {{chart: Chart, lines: string[]} | null} */
  hovered = null;
  /** @type {Map<Chart, HTMLElement>} */
  marks = new Map();
  frame = 0;

  /** @param {RunCharts} charts */
  constructor(charts) {
    this.charts = charts;
    charts.onHover = (chart, lines) => this.hover(chart, lines);
    document.addEventListener("pointermove", (event) => this.follow(event), { passive: true });
    document.addEventListener("pointerleave", () => this.set(null));
    document.addEventListener("scroll", () => this.step !== null && this.redraw(), { passive: true });
  }

  /** @param {PointerEvent} event */
  follow(event) {
    const target = event.target instanceof Element ? event.target.closest("[data-chart]") : null;
    const chart = this.charts.charts.find(({ element, onZoom }) => element === target && onZoom);
    const layout = chart && plotted(chart);
    if (!chart || !layout) return;
    if (chart !== this.read) showBeside(null);
    this.read = chart;
    const { l, w } = layout._size;
    const x = event.clientX - chart.element.getBoundingClientRect().left - l;
    this.set(x < 0 || x > w ? null : this.charts.state.axis.back(layout.xaxis.p2l(x)));
  }

  /** @param {number | null} step */
  set(step) {
    this.step = step;
    this.read ??= this.charts.charts.find(({ visible }) => visible) ?? null;
    this.redraw();
  }

  /**
   * Moves the cursor by recorded points of the loss, or of the first series if there is no loss.
   * @param {number} points
   */
  move(points) {
    const { data } = this.charts.state;
    const steps = (data["train/loss"] ?? Object.values(data)[0])?.step;
    if (!steps?.length) return;
    const at = this.step === null ? (points > 0 ? 0 : steps.length - 1) : nearest(steps, this.step) + points;
    this.set(steps[Math.max(0, Math.min(steps.length - 1, at))]);
  }

  redraw() {
    cancelAnimationFrame(this.frame);
    this.frame = requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { data, items, record } = this.charts.state;
    for (const chart of this.charts.charts) {
      const figure = chart.element.closest("figure");
      const layout = chart.visible && chart.onZoom && this.step !== null ? plotted(chart) : null;
      const at = layout && this.step !== null ? this.step : null;
      const found =
        at === null
          ? null
          : readout(chart.entry.figure, data, { layer: record.id, items, step: at, eigenvalues: record.eigenvalues });
      const hovered = this.hovered?.chart === chart ? this.hovered.lines : [];
      const shown = { step: found?.step ?? at, readings: found?.readings ?? [], hovered };
      const mark = this.marks.get(chart);
      if (layout && shown.step !== null) this.place(mark ?? this.make(chart), layout, shown.step);
      else if (mark) mark.hidden = true;
      if (!figure) continue;
      const empty = shown.step === null && !hovered.length;
      showInCaption(figure, empty ? null : shown);
      if (chart === this.read) showBeside(empty ? null : figure, shown);
    }
  }

  /**
   * Shows what Plotly says about the point under the pointer.
   * @param {Chart} chart
   * @param {string[]} lines
   */
  hover(chart, lines) {
    this.hovered = lines.length ? { chart, lines } : null;
    this.read = chart;
    this.redraw();
  }

  /** @param {Chart} chart */
  make(chart) {
    const mark = document.createElement("div");
    mark.className = "cursor";
    mark.setAttribute("aria-hidden", "true");
    chart.element.append(mark);
    this.marks.set(chart, mark);
    return mark;
  }

  /**
   * @param {HTMLElement} mark
   * @param {any} layout
   * @param {number} step
   */
  place(mark, layout, step) {
    const { l, t, w, h } = layout._size;
    const x = layout.xaxis.l2p(this.charts.state.axis.of(step));
    mark.hidden = !(x >= 0 && x <= w);
    Object.assign(mark.style, { transform: `translate(${l + x}px, ${t}px)`, height: `${h}px` });
  }
}

/**
 * The chart's axes; null if the chart is not drawn yet.
 * @param {Chart} chart
 */
function plotted(chart) {
  return /** @type {any} */ (chart.element)._fullLayout?._size ? /** @type {any} */ (chart.element)._fullLayout : null;
}
