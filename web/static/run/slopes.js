// Charts of the slopes of the run's map, with the newest weights of the shown layer as points.

import { get } from "../lib/api.js";
import { Chart } from "../chart/chart.js";
import { find, findAll, given } from "../lib/dom.js";
import { figureUrl } from "../lib/exports.js";
import { recolored } from "../chart/recolor.js";
import { showInCaption } from "./reading.js";

const WAIT_MS = 4000; // minimum time between two reads of a live run's weights, in ms

/** @typedef {{chart: Chart, url: string, figure: Figure | null}} Slope */

export class RunSlopes {
  /** @type {LayerRecord | null} the shown record */
  record = null;
  readAt = -Infinity;

  /**
   * @param {Record<string, ChartEntry>} entries
   * @param {() => boolean} known whether weights of the layer are recorded
   */
  constructor(entries, known) {
    this.known = known;
    this.charts = findAll("[data-slopes] [data-chart]", HTMLElement).map((element) => {
      /** @type {Slope} */
      const one = {
        chart: new Chart(element, entries[given(element, "chart")], () => one.figure),
        url: "",
        figure: null,
      };
      const frame = element.closest("figure");
      one.chart.onHover = (hovered) =>
        frame && showInCaption(frame, hovered.length ? { step: null, readings: [], hovered } : null);
      one.url = element.closest("figure")?.querySelector("a")?.href ?? "";
      return one;
    });
  }

  /** @param {LayerRecord} record */
  async show(record) {
    this.record = record;
    const part = find("[data-slopes]", HTMLElement);
    if (!record.map) part.hidden = true; // without a map there are no slopes
    if (!record.map || !this.known()) return;
    const named = find("[data-slopes-map]", HTMLElement, part);
    named.textContent = named.dataset.map = record.map;
    this.readAt = performance.now();
    await Promise.all(this.charts.map((one) => this.read(one)));
  }

  /** Reads the weights again if new points have arrived and the last read is old enough. @param {LayerRecord} record */
  follow(record) {
    const due = performance.now() - this.readAt >= WAIT_MS && !document.hidden;
    if (due && this.charts.some(({ chart, figure }) => chart.visible || !figure)) void this.show(record);
  }

  /** @param {Slope} one */
  async read(one) {
    const { record } = this;
    if (!record) return;
    /** @type {Figure | null} null: there are no weights yet, for example before the first step */
    const figure = await get(figureUrl(one.url, { layer: record.id, maps: record.map, format: "json" })).catch(
      () => null,
    );
    if (!figure || record.id !== this.record?.id) return;
    one.figure = { data: figure.data.map(recolored), layout: figure.layout };
    find("[data-slopes]", HTMLElement).hidden = false;
    one.chart.refresh();
  }
}
