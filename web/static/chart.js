// One chart on the page: draws at most twice a second, inside an animation frame of its own, only while it can be seen.
// The only module that touches Plotly.

import { onThemeChange, themed } from "./theme.js";

const INTERVAL_MS = 500;
const charts = new Set();
let timer = null;
let restUntil = 0;

const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) target.chart.visible = isIntersecting;
    schedule();
  },
  { rootMargin: "200px" },
);
document.addEventListener("visibilitychange", () => schedule());
onThemeChange(() => charts.forEach((chart) => chart.refresh()));

export class Chart {
  // `entry` is the chart's part of /api/figures; `build` gives {data, layout} when it is time to draw.
  constructor(element, entry, build) {
    Object.assign(this, { element, entry, build, visible: false, dirty: false, drawn: null, revision: 0, lastDraw: -Infinity });
    element.chart = this;
    charts.add(this);
    seen.observe(element);
  }

  // Draw soon; `drawn` is called after the pixels are there.
  refresh(drawn = null) {
    this.dirty = true;
    this.drawn = drawn ?? this.drawn;
    schedule();
  }

  draw() {
    this.dirty = false;
    const figure = this.build();
    if (!figure) return;
    this.revision += 1;
    const layout = { ...themed(figure.layout), datarevision: this.revision, autosize: true };
    const options = { ...this.entry.config, toImageButtonOptions: { format: "svg", filename: this.entry.title } };
    const first = this.revision === 1;
    const pending = globalThis.Plotly.react(this.element, figure.data, layout, options);
    if (first) this.listen();
    pending.then(() => {
      this.element.dataset.drawn = String(this.revision);
      this.drawn?.(this);
      this.drawn = null;
    });
  }

  listen() {
    this.element.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this.onZoom?.(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      else if (change["xaxis.autorange"] || "xaxis.range" in change) this.onZoom?.(null, null);
    });
    this.element.on("plotly_click", ({ points }) => this.onClick?.(points[0]));
  }
}

// What can be seen comes first; charts never drawn yet are next, so that scrolling finds them there.
function schedule() {
  if (timer !== null || document.hidden) return;
  const waiting = [...charts].filter((chart) => chart.dirty && (chart.visible || !chart.revision));
  if (!waiting.length) return;
  const before = (a, b) => (a.visible === b.visible ? a.lastDraw <= b.lastDraw : a.visible);
  const next = waiting.reduce((a, b) => (before(a, b) ? a : b));
  // half of the time at most goes into what nobody sees yet, so that the page stays usable on a slow machine
  const due = Math.max(next.lastDraw + INTERVAL_MS, next.visible ? 0 : restUntil);
  timer = setTimeout(() => requestAnimationFrame(() => drawOne(next)), Math.max(0, due - performance.now()));
}

function drawOne(chart) {
  timer = null;
  const start = performance.now();
  chart.lastDraw = start;
  if (chart.dirty) chart.draw();
  restUntil = 2 * performance.now() - start;
  schedule();
}
