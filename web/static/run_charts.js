// The charts of a run page: what each one shows, when it is drawn again, zoom to full resolution, chosen eigenvalues.

/** @import { RunModel } from "./run_model.js" */

import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { find, findAll, given } from "./dom.js";
import { parseIndices } from "./format.js";
import { eigenvalueItems, topEigenvalues } from "./pick.js";
import { colors } from "./theme.js";

/** @typedef {{request: AbortController, data: SeriesByName}} Zoom */

export class RunCharts {
  /** @type {EigenvalueItem[]} the eigenvalues drawn as lines */
  items = [];
  /** @type {Map<Chart, Zoom>} */
  zoomed = new Map();

  /**
   * @param {RunModel} model
   * @param {HTMLFormElement} controls
   */
  constructor(model, controls) {
    this.model = model;
    this.top = find("[name=top]", HTMLSelectElement, controls);
    this.chosen = find("[name=eigenvalues]", HTMLInputElement, controls);
    this.charts = findAll("[data-chart]", HTMLElement).map((element) => this.mount(element));
    controls.addEventListener("input", () => this.refresh());
    controls.addEventListener("submit", (event) => event.preventDefault());
  }

  /** @param {HTMLElement} element */
  mount(element) {
    const entry = this.model.figures[given(element, "chart")];
    /** @type {Chart} */
    const chart = new Chart(element, entry, () => this.figure(chart));
    chart.onZoom = (from, to) => this.zoom(chart, from, to);
    if (entry.scope === "layer") chart.onClick = (point) => this.choose(point);
    return chart;
  }

  /**
   * Draws the charts that show one of `names` (all of them without); `drawn` runs after each.
   * @param {string[] | null} [names]
   * @param {((chart: Chart) => void) | null} [drawn]
   */
  refresh(names = null, drawn = null) {
    if (names === null || names.some((name) => name.startsWith("ssm/"))) this.pick();
    for (const chart of this.charts) {
      const shows = names === null || this.series(chart).some((name) => names.includes(name));
      if (shows) this.reveal(chart);
      if (shows && !(names && this.zoomed.has(chart))) chart.refresh(drawn);
    }
  }

  /**
   * Shows a chart that the page left out because the run had not recorded its series when the page was made.
   * @param {Chart} chart
   */
  reveal(chart) {
    const figure = chart.element.closest("figure");
    if (figure?.hidden && this.series(chart).some((name) => this.model.stores.has(name))) figure.hidden = false;
  }

  reset() {
    this.zoomed.clear();
    this.items = [];
    this.refresh();
  }

  /** @param {Chart} chart */
  series(chart) {
    return chart.entry.series.map((name) => name.replace("{layer}", String(this.model.layer)));
  }

  /** The layer's ratios, by which eigenvalues are picked. */
  get ratio() {
    return this.model.stores.get(`ssm/${this.model.layer}/grad_over_weight`);
  }

  /** @param {Chart} chart */
  figure(chart) {
    const data = this.zoomed.get(chart)?.data ?? this.model.data;
    const { layer, alerts } = this.model;
    const figure = bind(chart.entry.figure, data, { layer, alerts, items: this.items, colors: colors() });
    const empty = !this.series(chart).some((name) => data[name]?.step.length);
    chart.element.closest("figure")?.classList.toggle("empty", empty);
    return figure;
  }

  // The eigenvalues drawn as lines: the k with the largest ratio, and those that were asked for.
  pick() {
    const { ratio } = this;
    if (!ratio?.points) return;
    const asked = parseIndices(this.chosen.value, ratio.width);
    const columns = [...new Set([...asked, ...topEigenvalues(ratio.data, Number(this.top.value))])];
    this.items = eigenvalueItems(columns.slice(0, 24).sort((a, b) => a - b), this.items);
  }

  /**
   * A click on a row or a line keeps that eigenvalue.
   * @param {ClickedPoint} point
   */
  choose(point) {
    const line = this.items.find((item) => point.data.name === `λ ${item.key}`);
    const column = point.data.type === "heatmap" ? Math.round(point.y) : line?.column;
    if (column === undefined) return;
    this.chosen.value = [...new Set([...parseIndices(this.chosen.value, this.ratio?.width ?? 0), column])].join(", ");
    this.refresh();
  }

  /**
   * @param {Chart} chart
   * @param {number | null} from null for the whole axis
   * @param {number | null} to
   */
  async zoom(chart, from, to) {
    this.zoomed.get(chart)?.request.abort();
    this.zoomed.delete(chart);
    if (from === null || to === null) {
      chart.refresh();
      return;
    }
    const request = new AbortController();
    const view = { request, data: this.model.data };
    this.zoomed.set(chart, view);
    try {
      view.data = await this.model.window(this.series(chart), from, to, request.signal);
      chart.refresh();
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError")) throw error;
    }
  }
}
