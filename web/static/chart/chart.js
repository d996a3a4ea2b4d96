// One chart on the page. When Plotly draws the whole chart, in a separate animation frame, we say that the chart settles. A
// chart settles at most twice a second, and only if it is visible or has never been drawn with points. Until the chart
// settles again, tail.js draws new points over it every 0.4 s. No other module calls Plotly.

import { charts, schedule, scheduleTails, watch } from "./draw_order.js";
import { Tail } from "./tail.js";
import { onThemeChange, themed } from "../lib/theme.js";

const SETTLE_MS = 20_000; // maximum time before the chart settles again, in ms
const SOONEST_MS = 2_000; // minimum time between two full redraws if a point is outside the axes, in ms
const SHARE = 0.01; // maximum share of the time that full redraws may take

const NARROW = 480; // pixels: below this width the legend would take the plot's space

const resized = new ResizeObserver((entries) => entries.forEach(({ target }) => charts.get(target)?.resized()));
onThemeChange(() => charts.forEach((chart) => chart.refresh()));

/** @param {Trace} trace */
const withoutAlertInLegend = (trace) => (trace.meta?.field === "alerts" ? { ...trace, showlegend: false } : trace);

export class Chart {
  /** @type {((chart: Chart) => void) | null} called once, after the next drawing */
  drawn = null;
  /** @type {((from: number | null, to: number | null) => void) | null} in units of the axis; null, null shows the whole axis */
  onZoom = null;
  /** @type {((point: ClickedPoint) => void) | null} */
  onClick = null;
  /** @type {((lines: string[]) => void) | null} called with the texts of Plotly's hover labels, which may be none */
  onHover = null;
  /** @type {(() => {figure: Figure, whole: boolean} | null) | null} the new points, or, if `whole`, all points since the chart settled; null if a tail cannot show these points */
  growth = null;
  visible = false;
  waiting = false;
  growing = false;
  /** Whether the chart was last drawn without any point of its series. */
  empty = false;
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
   * @param {() => Figure | null} build makes the figure when the chart is drawn
   */
  constructor(element, entry, build) {
    this.element = element;
    this.entry = entry;
    this.build = build;
    watch(this);
  }

  /**
   * Draws the whole chart soon and then calls `drawn`.
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  refresh(drawn = null) {
    this.waiting = true;
    this.drawn = drawn ?? this.drawn;
    schedule();
  }

  /**
   * Draws new points soon. Call this method if nothing except the points has changed.
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  grow(drawn = null) {
    if (!this.growth || !this.drawings || this.empty) return this.refresh(drawn);
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
    const options = {
      ...this.entry.config,
      ...zooms,
      toImageButtonOptions: { format: "svg", filename: this.entry.title },
    };
    const pending = Plotly.react(
      this.element,
      this.width < NARROW ? figure.data.map(withoutAlertInLegend) : figure.data,
      layout,
      options,
    );
    if (this.drawings === 1) this.listen();
    this.settledAt = performance.now();
    this.cost = this.settledAt - start;
    pending.then(() => {
      if (this.growth) (this.tail ??= new Tail(this.element)).clear();
      this.element.dataset.drawn = String(this.drawings);
      this.callDrawn();
    });
  }

  callDrawn() {
    const { drawn } = this;
    this.drawn = null;
    drawn?.(this);
  }

  // Draws new points as a tail. Draws the whole chart if there is no tail, if the tail is old, or if a point is outside
  // the axes.
  drawTail() {
    const since = performance.now() - this.settledAt;
    const may = since >= Math.max(SOONEST_MS, this.cost / SHARE);
    const grown = this.tail && since < SETTLE_MS ? this.growth?.() : null;
    if (!this.tail || !grown) {
      if (since >= SOONEST_MS) this.refresh(); // even if a redraw is slow, because the chart shows no new points until then
      return; // without a redraw, `growing` remains true and the next call tries again
    }
    this.growing = false;
    if (grown.whole) this.tail.clear();
    const inside = this.tail.draw(grown.figure);
    this.callDrawn();
    if (!inside && may) this.refresh();
  }

  /**
   * Shows this part of the horizontal axis in the current animation frame.
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
      else if (this.tail) this.refresh(); // the vertical axis has changed, so the tail no longer fits
    });
    plot.on("plotly_doubleclick", () => this.onZoom?.(null, null));
    plot.on("plotly_hover", ({ points }) => {
      const lines = points.every(({ data }) => data.hoverinfo === "none"); // the cursor shows the values of lines
      this.onHover?.(lines ? [] : hoverTexts(this.element));
    });
    plot.on("plotly_unhover", () => this.onHover?.([]));
    plot.on("plotly_click", ({ points }) => this.onClick?.(points[0]));
  }
}

/**
 * The lines of Plotly's hover labels.
 * @param {HTMLElement} element
 */
function hoverTexts(element) {
  const texts = [...element.querySelectorAll(".hoverlayer .hovertext text")];
  return texts
    .flatMap((text) => {
      const lines = [...text.querySelectorAll("tspan.line")];
      return (lines.length ? lines : [text]).map((line) => line.textContent ?? "");
    })
    .filter(Boolean);
}

/**
 * Draws a figure as a picture, without a chart on the page, and returns the picture's data URL.
 * @param {Figure} figure
 * @param {{format: string, width: number, height: number, scale: number}} size
 */
export function picture(figure, size) {
  return Plotly.toImage(figure, size);
}
