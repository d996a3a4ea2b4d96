// Links alerts and charts: a click on an alert zooms the charts to the alert's step; a click on an alert's mark in a
// chart shows the alert in the list.

/** @import { RunCharts } from "./charts.js" */
/** @import { Cursor } from "./cursor.js" */

import { find } from "../lib/dom.js";
import { reveal } from "./folds.js";
import { recordOfAlert } from "./records.js";

const AROUND = 50; // number of steps shown on either side of an alert

export class AlertLinks {
  at = -1;

  /**
   * @param {RunCharts} charts
   * @param {Cursor} cursor
   * @param {(record: string) => Promise<void>} toLayer
   */
  constructor(charts, cursor, toLayer) {
    this.charts = charts;
    this.cursor = cursor;
    this.toLayer = toLayer;
    charts.onMark = (point) => this.clicked(point);
    document.querySelector("[data-alerts]")?.addEventListener("click", (event) => {
      const row = event.target instanceof Element ? event.target.closest("[data-alert-id]") : null;
      const alert =
        row instanceof HTMLElement && charts.state.model.alerts.find(({ id }) => String(id) === row.dataset.alertId);
      if (!alert) return;
      event.preventDefault(); // without this script the link opens the page at that step
      void this.go(alert);
    });
  }

  /** @param {AlertAnswer} alert */
  async go(alert) {
    this.mark(alert.id);
    const record = recordOfAlert(alert);
    if (record !== null) await this.toLayer(record);
    if (await this.charts.onMetric(alert.series)) return;
    const chart =
      this.charts.charts.find((one) => this.charts.state.series(one.entry).includes(alert.series)) ??
      this.charts.charts[0];
    reveal(chart.element);
    chart.element.scrollIntoView({ block: "center" });
    this.cursor.set(alert.step);
    await this.charts.zoom(Math.max(0, alert.step - AROUND), alert.step + AROUND);
  }

  /**
   * Goes to the next or the previous alert in the order of steps.
   * @param {1 | -1} by
   */
  next(by) {
    const alerts = this.charts.state.model.alerts.toSorted((a, b) => a.step - b.step || a.id - b.id);
    if (!alerts.length) return;
    this.at = (this.at + by + alerts.length) % alerts.length;
    void this.go(alerts[this.at]);
  }

  /**
   * @param {ClickedPoint} point
   * @returns {boolean} whether the point was an alert's mark
   */
  clicked(point) {
    const { field } = point.data.meta ?? {};
    if (field === "alerts" && point.customdata) {
      this.mark(point.customdata)?.scrollIntoView({ block: "nearest" });
      return true;
    }
    if (field !== "nonfinite") return false;
    const step = this.charts.state.axis.back(Number(point.x));
    this.cursor.set(step);
    void this.charts.zoom(Math.max(0, step - AROUND), step + AROUND);
    return true;
  }

  /** @param {number} id */
  mark(id) {
    for (const row of document.querySelectorAll("[data-alert-id].linked")) row.classList.remove("linked");
    const row = document.querySelector(`[data-alert-id="${Number(id)}"]`);
    row?.classList.add("linked");
    if (row) find("#alerts", HTMLElement).classList.add("pointed");
    return row;
  }
}
