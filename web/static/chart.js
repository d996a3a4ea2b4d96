// One chart on the page: draws at most twice a second, inside an animation frame of its own, only while it can be seen.
// The only module that touches Plotly.

import { onThemeChange, themed } from "./theme.js";

const INTERVAL_MS = 500;
/** @type {Map<Element, Chart>} */
const charts = new Map();
/** @type {number | null} */
let timer = null;
let restUntil = 0;

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const chart = charts.get(target);
      if (chart) chart.visible = isIntersecting;
    }
    schedule();
  },
  { rootMargin: "200px" },
);
document.addEventListener("visibilitychange", () => schedule());
onThemeChange(() => charts.forEach((chart) => chart.refresh()));

export class Chart {
  /** @type {((chart: Chart) => void) | null} called once, after the next drawing */
  drawn = null;
  /** @type {((from: number | null, to: number | null) => void) | null} null, null: the whole axis again */
  onZoom = null;
  /** @type {((point: ClickedPoint) => void) | null} */
  onClick = null;
  visible = false;
  waiting = false;
  drawings = 0;
  lastDraw = -Infinity;

  /**
   * @param {HTMLElement} element
   * @param {ChartEntry} entry the chart's part of /api/figures
   * @param {() => Figure | null} build the figure, when it is time to draw
   */
  constructor(element, entry, build) {
    this.element = element;
    this.entry = entry;
    this.build = build;
    charts.set(element, this);
    seen.observe(element);
  }

  /**
   * Draw soon; `drawn` is called after the pixels are there.
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  refresh(drawn = null) {
    this.waiting = true;
    this.drawn = drawn ?? this.drawn;
    schedule();
  }

  draw() {
    this.waiting = false;
    const figure = this.build();
    if (!figure) return;
    this.drawings += 1;
    const layout = { ...themed(figure.layout), datarevision: this.drawings, autosize: true };
    const options = { ...this.entry.config, toImageButtonOptions: { format: "svg", filename: this.entry.title } };
    const pending = Plotly.react(this.element, figure.data, layout, options);
    if (this.drawings === 1) this.listen();
    pending.then(() => {
      this.element.dataset.drawn = String(this.drawings);
      this.drawn?.(this);
      this.drawn = null;
    });
  }

  listen() {
    const plot = /** @type {PlotlyElement} */ (this.element);
    plot.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this.onZoom?.(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      else if (change["xaxis.autorange"] || "xaxis.range" in change) this.onZoom?.(null, null);
    });
    plot.on("plotly_click", ({ points }) => this.onClick?.(points[0]));
  }
}

// What can be seen comes first; charts never drawn yet are next, so that scrolling finds them there.
function schedule() {
  if (timer !== null || document.hidden) return;
  const waiting = [...charts.values()].filter((chart) => chart.waiting && (chart.visible || !chart.drawings));
  if (!waiting.length) return;
  const next = waiting.reduce((a, b) => (isBefore(a, b) ? a : b));
  // half of the time at most goes into what nobody sees yet, so that the page stays usable on a slow machine
  const due = Math.max(next.lastDraw + INTERVAL_MS, next.visible ? 0 : restUntil);
  timer = setTimeout(() => requestAnimationFrame(() => drawOne(next)), Math.max(0, due - performance.now()));
}

/** @param {Chart} a @param {Chart} b */
function isBefore(a, b) {
  return a.visible === b.visible ? a.lastDraw <= b.lastDraw : a.visible;
}

/** @param {Chart} chart */
function drawOne(chart) {
  timer = null;
  const start = performance.now();
  chart.lastDraw = start;
  if (chart.waiting) chart.draw();
  restUntil = 2 * performance.now() - start;
  schedule();
}
