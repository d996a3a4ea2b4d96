// One chart on the page. Plotly draws what is there ("settles") inside an animation frame of its own, at most twice a second and
// only what can be seen; what comes after is drawn over it by tail.js, every 0.4 s, until the chart settles again.
// The only module that calls Plotly.

import { charts, schedule, scheduleTails, watch } from "./draw_order.js";
import { Tail } from "./tail.js";
import { onThemeChange, themed } from "./theme.js";

const SETTLE_MS = 20_000; // a tail is at most this old
const SOONEST_MS = 2_000; // and a chart that a point has left settles no sooner than this,
const SHARE = 0.01; // nor so often that it takes more of the time than this

const NARROW = 480; // pixels: here the legend would take the plot's room

const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => charts.get(target)?.resized()));
onThemeChange(() => charts.forEach((chart) => chart.refresh()));

/** @param {Trace} trace */
const withoutAlertInLegend = (trace) => (trace.meta?.field === "alerts" ? { ...trace, showlegend: false } : trace);

export class Chart {
  /** @type {((chart: Chart) => void) | null} called once, after the next drawing */
  drawn = null;
  /** @type {((from: number | null, to: number | null) => void) | null} in units of the axis; null, null: the whole axis again */
  onZoom = null;
  /** @type {((point: ClickedPoint) => void) | null} */
  onClick = null;
  /** @type {(() => {figure: Figure, whole: boolean} | null) | null} what came since; `whole`: since the chart settled; null: cannot be told */
  growth = null;
  visible = false;
  waiting = false;
  growing = false;
  drawings = 0;
  lastDraw = -Infinity;
  settledAt = -Infinity;
  cost = 0;
  width = 0;
  /** @type {Tail | null} */
  tail = null;

  /**
   * @param {HTMLElement} element
   * @param {ChartEntry} entry the chart's part of /api/figures
   * @param {() => Figure | null} build the figure, when it is time to draw
   */
  constructor(element, entry, build) {
    this.element = element;
    this.entry = entry;
    this.build = build;
    watch(this);
  }

  /**
   * Draw all of it soon; `drawn` is called after the pixels are there.
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  refresh(drawn = null) {
    this.waiting = true;
    this.drawn = drawn ?? this.drawn;
    schedule();
  }

  /**
   * There are new points, and nothing else is new.
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  grow(drawn = null) {
    if (!this.growth || !this.drawings) return this.refresh(drawn);
    this.growing = true;
    this.drawn = drawn ?? this.drawn;
    return scheduleTails();
  }

  draw() {
    this.waiting = this.growing = false;
    const figure = this.build();
    if (!figure) return;
    const start = performance.now();
    this.drawings += 1;
    this.width = this.element.clientWidth;
    const layout = { ...themed(figure.layout), datarevision: this.drawings, autosize: true };
    const zooms = this.onZoom ? { doubleClick: false } : {};
    const options = { ...this.entry.config, ...zooms, toImageButtonOptions: { format: "svg", filename: this.entry.title } };
    const pending = Plotly.react(this.element, this.width < NARROW ? figure.data.map(withoutAlertInLegend) : figure.data, layout, options);
    if (this.drawings === 1) this.listen();
    this.settledAt = performance.now();
    this.cost = this.settledAt - start;
    pending.then(() => {
      if (this.growth) (this.tail ??= new Tail(this.element)).clear();
      this.element.dataset.drawn = String(this.drawings);
      this.told();
    });
  }

  told() {
    const { drawn } = this;
    this.drawn = null;
    drawn?.(this);
  }

  // New points as a tail; settle when there is none to be had, when it is old, or when a point has left the axes.
  drawTail() {
    const since = performance.now() - this.settledAt;
    const may = since >= Math.max(SOONEST_MS, this.cost / SHARE);
    const grown = this.tail && since < SETTLE_MS ? this.growth?.() : null;
    if (!this.tail || !grown) {
      if (since >= SOONEST_MS) this.refresh(); // whatever it costs: meanwhile the chart stands still
      return; // else still growing: asked again a little later
    }
    this.growing = false;
    if (grown.whole) this.tail.clear();
    const inside = this.tail.draw(grown.figure);
    this.told();
    if (!inside && may) this.refresh();
  }

  /**
   * Shows this part of the horizontal axis, in this frame.
   * @param {[number, number]} range
   */
  show(range) {
    if (this.drawings) void Plotly.relayout(this.element, { "xaxis.range": range });
    this.tail?.clear();
  }

  resized() {
    if (this.tail && this.element.clientWidth !== this.width) this.refresh();
  }

  listen() {
    resized.observe(this.element);
    const plot = /** @type {PlotlyElement} */ (this.element);
    plot.on("plotly_relayout", (change) => {
      if ("xaxis.range[0]" in change) this.onZoom?.(change["xaxis.range[0]"], change["xaxis.range[1]"]);
      else if (change["xaxis.autorange"]) this.onZoom?.(null, null);
      else if (this.tail) this.refresh(); // the vertical axis: the tail is drawn anew
    });
    plot.on("plotly_doubleclick", () => this.onZoom?.(null, null));
    plot.on("plotly_click", ({ points }) => this.onClick?.(points[0]));
  }
}

/**
 * A figure as a picture, which needs no chart on the page: the address of its data.
 * @param {Figure} figure
 * @param {{format: string, width: number, height: number, scale: number}} size
 */
export function picture(figure, size) {
  return Plotly.toImage(figure, size);
}
