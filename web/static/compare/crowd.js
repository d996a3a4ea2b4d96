// A Plotly chart with many lines: hides some lines and highlights one without a redraw. This module reads the axes of
// the drawn graph and changes the drawn lines.

import { findAll } from "../lib/dom.js";
import { number } from "../lib/format.js";

const NEAR_PX = 14;

/** @typedef {{key: string, label: string, color: string, x: Float64Array, y: Float32Array}} CrowdLine */

export class Crowd {
  /** @type {CrowdLine[]} */
  lines = [];
  /** @type {Set<string>} */
  shown = new Set();
  /** @type {(key: string | null) => void} */
  onHover = () => {};
  /** @type {string | null} */
  lit = null;

  /** @param {HTMLElement} element the chart's element */
  constructor(element) {
    this.element = element;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "highlight";
    this.readout = document.createElement("output");
    this.readout.className = "readout";
    this.readout.hidden = true;
    element.parentElement?.classList.add("crowd");
    element.classList.add("crowd");
    element.addEventListener("pointermove", (event) => this.hover(event));
    element.addEventListener("pointerleave", () => this.onHover(null));
  }

  /** @returns {{xaxis: PlotlyAxis, yaxis: PlotlyAxis} | null} */
  get axes() {
    const layout = /** @type {any} */ (this.element)._fullLayout;
    return layout?.xaxis?.d2p ? layout : null;
  }

  /** Hides and highlights the same lines again after Plotly redraws the chart. */
  drawn() {
    this.element.append(this.canvas, this.readout);
    this.show(this.shown);
    this.light(this.lit);
  }

  /** @param {Set<string>} shown */
  show(shown) {
    this.shown = shown;
    for (const group of findAll("g.trace", SVGElement, this.element)) {
      const key = /tracerun(\d+)/.exec(group.getAttribute("class") ?? "")?.[1];
      if (key) group.style.display = shown.has(key) ? "" : "none";
    }
  }

  /**
   * Dims the whole graph as one layer and draws one line above it.
   * @param {string | null} key
   */
  light(key) {
    this.lit = key;
    const line = this.lines.find((one) => one.key === key);
    const { axes } = this;
    this.element.classList.toggle("dimmed", line !== undefined);
    const { clientWidth: width, clientHeight: height } = this.element;
    const scale = devicePixelRatio;
    if (this.canvas.width !== width * scale || this.canvas.height !== height * scale) {
      Object.assign(this.canvas, { width: width * scale, height: height * scale });
      Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    }
    const context = this.canvas.getContext("2d");
    if (!context) return;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    if (!line || !axes) {
      this.readout.hidden = true;
      return;
    }
    const { xaxis, yaxis } = axes;
    context.save();
    context.beginPath();
    context.rect(xaxis._offset, yaxis._offset, xaxis._length, yaxis._length);
    context.clip();
    context.beginPath();
    let open = false;
    for (let i = 0; i < line.x.length; i += 1) {
      const y = yaxis.d2p(line.y[i]);
      if (!Number.isFinite(y)) open = false;
      else if (open) context.lineTo(xaxis._offset + xaxis.d2p(line.x[i]), yaxis._offset + y);
      else context.moveTo(xaxis._offset + xaxis.d2p(line.x[i]), yaxis._offset + y);
      open = Number.isFinite(y);
    }
    context.strokeStyle = line.color;
    context.lineWidth = 2.5;
    context.stroke();
    context.restore();
  }

  /** @param {PointerEvent} event */
  hover(event) {
    const { axes } = this;
    if (!axes || event.buttons) return;
    const box = this.element.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left - axes.xaxis._offset, event.clientY - box.top - axes.yaxis._offset];
    const x = axes.xaxis.p2d(px);
    let [best, distance, index] = [/** @type {CrowdLine | null} */ (null), NEAR_PX, 0];
    for (const line of this.lines) {
      if (!this.shown.has(line.key)) continue;
      const i = before(line.x, x);
      for (const j of i < 0 ? [] : [i, i - 1]) {
        const away = Math.abs(axes.yaxis.d2p(line.y[j]) - py);
        if (away < distance) [best, distance, index] = [line, away, j];
      }
    }
    if ((best?.key ?? null) !== this.lit) this.onHover(best?.key ?? null);
    this.readout.hidden = best === null;
    if (best) this.readout.textContent = `${best.label}: ${number(best.y[index])} at ${number(best.x[index], 6)}`;
  }
}

/**
 * The last index whose value is at most `x`; -1 if there is none or `x` is beyond the end.
 * @param {Float64Array} xs
 * @param {number} x
 */
function before(xs, x) {
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return -1;
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}
