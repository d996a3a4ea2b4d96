// The slopes of the run's map, and on them the newest weights of the layer that is shown.

import { get } from "./api.js";
import { Chart } from "./chart.js";
import { findAll, given } from "./dom.js";
import { figureUrl } from "./exports.js";
import { recolored } from "./recolor.js";

const WAIT_MS = 4000; // at least, between two looks at a live run's weights

/** @typedef {{chart: Chart, url: string, figure: Figure | null}} Slope */

export class RunSlopes {
  layer = 0;
  readAt = -Infinity;

  /**
   * @param {Record<string, ChartEntry>} entries
   * @param {() => boolean} known whether weights of the layer are recorded
   */
  constructor(entries, known) {
    this.known = known;
    this.charts = findAll("[data-slopes] [data-chart]", HTMLElement).map((element) => {
      /** @type {Slope} */
      const one = { chart: new Chart(element, entries[given(element, "chart")], () => one.figure), url: "", figure: null };
      one.url = element.closest("figure")?.querySelector("a")?.href ?? "";
      return one;
    });
  }

  /** @param {number} layer */
  async show(layer) {
    this.layer = layer;
    if (!this.known()) return;
    this.readAt = performance.now();
    await Promise.all(this.charts.map((one) => this.read(one)));
  }

  // New points have come.
  follow() {
    const due = performance.now() - this.readAt >= WAIT_MS && !document.hidden;
    if (due && this.charts.some(({ chart, figure }) => chart.visible || !figure)) void this.show(this.layer);
  }

  /** @param {Slope} one */
  async read(one) {
    const { layer } = this;
    /** @type {Figure | null} null: no weights to be had, as before the first step */
    const figure = await get(figureUrl(one.url, { layer, format: "json" })).catch(() => null);
    if (!figure || layer !== this.layer) return;
    one.figure = { data: figure.data.map(recolored), layout: figure.layout };
    const part = one.chart.element.closest("[data-slopes]");
    if (part instanceof HTMLElement) part.hidden = false;
    one.chart.refresh();
  }
}
