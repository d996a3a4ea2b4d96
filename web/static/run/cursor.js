// One cursor for all charts of a run page: a line at a step, with the values of each chart's lines at this step. The
// cursor follows the pointer and the arrow keys.

/** @import { Chart } from "../chart/chart.js" */
/** @import { RunCharts } from "./charts.js" */

import { nearest } from "./clock.js";
import { number } from "../lib/format.js";
import { readout } from "./readout.js";
import { colors } from "../lib/theme.js";

export class Cursor {
  /** @type {number | null} the step under the cursor */
  step = null;
  /** @type {Map<Chart, HTMLElement>} */
  marks = new Map();
  frame = 0;

  /** @param {RunCharts} charts */
  constructor(charts) {
    this.charts = charts;
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
    const { l, w } = layout._size;
    const x = event.clientX - chart.element.getBoundingClientRect().left - l;
    this.set(x < 0 || x > w ? null : this.charts.state.axis.back(layout.xaxis.p2l(x)));
  }

  /** @param {number | null} step */
  set(step) {
    this.step = step;
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
      const layout = chart.visible && chart.onZoom && this.step !== null ? plotted(chart) : null;
      const mark = this.marks.get(chart);
      if (!layout || this.step === null) {
        if (mark) mark.hidden = true;
        continue;
      }
      const shown = readout(chart.entry.figure, data, {
        layer: record.id,
        items,
        step: this.step,
        eigenvalues: record.eigenvalues,
      });
      this.place(mark ?? this.make(chart), layout, this.step, shown);
    }
  }

  /** @param {Chart} chart */
  make(chart) {
    const mark = document.createElement("div");
    mark.className = "cursor";
    mark.setAttribute("aria-hidden", "true"); // hidden, because the chart's description contains the same values
    mark.append(Object.assign(document.createElement("div"), { className: "values" }));
    chart.element.append(mark);
    this.marks.set(chart, mark);
    return mark;
  }

  /**
   * @param {HTMLElement} mark
   * @param {any} layout
   * @param {number} step
   * @param {ReturnType<typeof readout>} shown
   */
  place(mark, layout, step, shown) {
    const { l, t, w, h } = layout._size;
    const x = layout.xaxis.l2p(this.charts.state.axis.of(shown?.step ?? step));
    mark.hidden = !(x >= 0 && x <= w);
    Object.assign(mark.style, { transform: `translate(${l + x}px, ${t}px)`, height: `${h}px` });
    mark.classList.toggle("flipped", x > w / 2);
    const palette = colors();
    const lines = (shown?.readings ?? []).map(({ name, text, color }) => {
      const line = document.createElement("div");
      line.append(Object.assign(document.createElement("b"), { textContent: name }), ` ${text}`);
      line.style.color = palette[color] ?? palette.ink;
      return line;
    });
    mark.firstElementChild?.replaceChildren(`step ${number(shown?.step ?? step)}`, ...lines);
  }
}

/**
 * The chart's axes; null if the chart is not drawn yet.
 * @param {Chart} chart
 */
function plotted(chart) {
  return /** @type {any} */ (chart.element)._fullLayout?._size ? /** @type {any} */ (chart.element)._fullLayout : null;
}
