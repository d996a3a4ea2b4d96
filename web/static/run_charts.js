// The charts of a run page: what each one shows, when it is drawn again, zoom to full resolution, chosen eigenvalues.

import { bind } from "./bind.js";
import { Chart } from "./chart.js";
import { parseIndices } from "./format.js";
import { eigenvalueItems, topEigenvalues } from "./pick.js";
import { colors } from "./theme.js";

export class RunCharts {
  constructor(model, controls) {
    Object.assign(this, { model, controls, items: [], zoomed: new Map() });
    this.charts = [...document.querySelectorAll("[data-chart]")].map((element) => this.mount(element));
    controls.addEventListener("input", () => this.refresh());
    controls.addEventListener("submit", (event) => event.preventDefault());
  }

  mount(element) {
    const entry = this.model.figures[element.dataset.chart];
    const chart = new Chart(element, entry, () => this.figure(chart));
    chart.onZoom = (from, to) => this.zoom(chart, from, to);
    if (entry.scope === "layer") chart.onClick = (point) => this.choose(entry, point);
    return chart;
  }

  // Draws the charts that show one of `names` (all of them without); `drawn` runs after each.
  refresh(names = null, drawn = null) {
    if (names === null || names.some((name) => name.startsWith("ssm/"))) this.pick();
    for (const chart of this.charts) {
      const shows = names === null || this.series(chart).some((name) => names.includes(name));
      if (shows && !(names && this.zoomed.has(chart))) chart.refresh(drawn);
    }
  }

  reset() {
    this.zoomed.clear();
    this.items = [];
    this.refresh();
  }

  series(chart) {
    return chart.entry.series.map((name) => name.replace("{layer}", this.model.layer));
  }

  figure(chart) {
    const data = this.zoomed.get(chart)?.data ?? this.model.data;
    const { layer, alerts } = this.model;
    const figure = bind(chart.entry.figure, data, { layer, alerts, items: this.items, colors: colors() });
    const empty = !this.series(chart).some((name) => data[name]?.step.length);
    chart.element.closest("figure").classList.toggle("empty", empty);
    return figure;
  }

  // The eigenvalues drawn as lines: the k with the largest ratio, and those that were asked for.
  pick() {
    const ratio = this.model.stores.get(`ssm/${this.model.layer}/grad_over_weight`);
    if (!ratio?.count) return;
    const { top, eigenvalues } = this.controls.elements;
    const asked = parseIndices(eigenvalues.value, ratio.width);
    const columns = [...new Set([...asked, ...topEigenvalues(ratio.data, Number(top.value))])];
    this.items = eigenvalueItems(columns.slice(0, 24).sort((a, b) => a - b), this.items);
  }

  // A click on a row or a line keeps that eigenvalue.
  choose(entry, point) {
    const column = point.data.type === "heatmap" ? Math.round(point.y) : this.items.find((i) => point.data.name === `λ ${i.key}`)?.column;
    if (column === undefined) return;
    const { eigenvalues } = this.controls.elements;
    const width = this.model.stores.get(`ssm/${this.model.layer}/grad_over_weight`)?.width ?? 0;
    eigenvalues.value = [...new Set([...parseIndices(eigenvalues.value, width), column])].join(", ");
    this.refresh();
  }

  async zoom(chart, from, to) {
    this.zoomed.get(chart)?.request.abort();
    this.zoomed.delete(chart);
    if (from === null) return chart.refresh();
    const request = new AbortController();
    const view = { request, data: this.model.data };
    this.zoomed.set(chart, view);
    try {
      view.data = await this.model.window(this.series(chart), from, to, request.signal);
      chart.refresh();
    } catch (error) {
      if (error.name !== "AbortError") throw error;
    }
  }
}
