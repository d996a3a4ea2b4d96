// The free metrics of a run: groups by prefix, and a chart of each metric once its group is open and the chart is in view. New
// values are read again every few seconds while the run logs them.

/** @import { RunState } from "./view_state.js" */

import { get } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { MetricChart } from "./metric_chart.js";

const PAGE = 24; // charts that a group shows before the reader asks for more
const READ_MS = 2000; // minimum time between two reads of new values

/** @typedef {{name: string, group: string, last: JsonNumber | null}} Metric */

export class RunMetrics {
  /** @type {Metric[]} */
  metrics = [];
  /** @type {Map<string, MetricChart>} */
  charts = new Map();
  /** How many charts each group shows. @type {Map<string, number>} */
  shown = new Map();
  /** @type {Promise<void> | null} */
  reading = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  timer = undefined;

  /**
   * @param {HTMLElement} section
   * @param {{entry: ChartEntry, seriesUrl: string, state: RunState}} of
   */
  constructor(section, { entry, seriesUrl, state }) {
    this.section = section;
    this.entry = entry;
    this.state = state;
    this.urls = { metrics: given(section, "metricsUrl"), figure: given(section, "figureUrl"), series: seriesUrl };
    this.groups = find("[data-metric-groups]", HTMLElement, section);
    this.search = find("[data-metrics-find]", HTMLInputElement, section);
    this.search.addEventListener("input", () => this.show());
    this.groups.addEventListener(
      "toggle",
      ({ target }) => target instanceof HTMLDetailsElement && this.opened(target),
      {
        capture: true, // toggle events do not bubble
      },
    );
    if (this.groups.querySelector("details[open]")) void this.read();
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) this.chartOf(target)?.see(isIntersecting);
    });
  }

  /** @param {Element} element */
  chartOf(element) {
    return element instanceof HTMLElement ? this.charts.get(element.dataset.metric ?? "") : undefined;
  }

  /** Called when the run has logged new values, or steps were undone. */
  changed() {
    this.timer ??= setTimeout(async () => {
      this.timer = undefined;
      await this.read();
      for (const chart of this.charts.values()) chart.outdated();
    }, READ_MS);
  }

  /** Reads the names and newest values. @returns {Promise<void>} */
  async read() {
    this.reading ??= get(this.urls.metrics).then((answer) => {
      this.metrics = answer.metrics;
    });
    try {
      await this.reading;
      this.show();
    } catch {
      // the status of the stream shows that the server cannot be reached; the next change reads again
    } finally {
      this.reading = null;
    }
  }

  /**
   * Opens the group of a metric and scrolls to its chart.
   * @param {string} name
   * @returns {Promise<boolean>} false if the run has no metric of this name
   */
  async reveal(name) {
    if (!this.metrics.length && !this.section.hidden) await this.read();
    const metric = this.metrics.find((one) => one.name === name);
    if (!metric) return false;
    this.search.value = "";
    const place = this.metrics.filter(({ group }) => group === metric.group).indexOf(metric);
    this.shown.set(metric.group, Math.max(this.shown.get(metric.group) ?? PAGE, place + 1));
    this.groupOf(metric.group).open = true;
    this.show();
    this.charts.get(name)?.figure.scrollIntoView({ block: "center" });
    return true;
  }

  /** @param {HTMLDetailsElement} details */
  async opened(details) {
    if (!details.open) return;
    if (this.metrics.length) this.show();
    else await this.read();
  }

  // Shows the groups, and the charts of the open groups, that match the search.
  show() {
    this.section.hidden = !this.metrics.length;
    for (const link of document.querySelectorAll("[data-metrics-link]"))
      link.toggleAttribute("hidden", this.section.hidden);
    const wanted = this.search.value.trim().toLowerCase();
    /** @type {Map<string, Metric[]>} */
    const byGroup = Map.groupBy(this.metrics, ({ group }) => group);
    for (const [group, metrics] of byGroup) {
      const details = this.groupOf(group);
      const found = metrics.filter(({ name }) => name.toLowerCase().includes(wanted));
      find("[data-count]", HTMLElement, details).textContent = String(found.length);
      details.hidden = !found.length;
      if (details.open) this.fill(details, found);
    }
  }

  /** @param {string} group @returns {HTMLDetailsElement} */
  groupOf(group) {
    const known = findAll("details", HTMLDetailsElement, this.groups).find((one) => one.dataset.metricGroup === group);
    if (known) return known;
    const details = Object.assign(document.createElement("details"), { className: "chart-group" });
    details.dataset.metricGroup = group;
    const count = Object.assign(document.createElement("span"), { className: "muted small" });
    count.dataset.count = "";
    const summary = document.createElement("summary");
    summary.append(`${group || "without a prefix"} `, count);
    details.append(summary);
    this.groups.append(details);
    return details;
  }

  /**
   * @param {HTMLDetailsElement} details
   * @param {Metric[]} metrics
   */
  fill(details, metrics) {
    const group = given(details, "metricGroup");
    const most = this.shown.get(group) ?? PAGE;
    let figures = details.querySelector(".figures");
    if (!figures) {
      figures = Object.assign(document.createElement("div"), { className: "figures tiny-charts" });
      details.append(figures);
    }
    const elements = metrics.slice(0, most).map((metric) => this.chart(metric).figure);
    const now = [...figures.children];
    if (elements.length !== now.length || elements.some((element, i) => element !== now[i]))
      figures.replaceChildren(...elements);
    for (const metric of metrics) this.charts.get(metric.name)?.newest(metric.last);
    this.more(details, metrics.length - most, () => this.shown.set(group, most + PAGE));
  }

  /**
   * @param {HTMLDetailsElement} details
   * @param {number} left number of metrics that are not shown
   * @param {() => void} grow
   */
  more(details, left, grow) {
    details.querySelector("[data-more-metrics]")?.remove();
    if (left <= 0) return;
    const button = Object.assign(document.createElement("button"), {
      type: "button",
      textContent: `Show more (${left} left)`,
    });
    button.dataset.moreMetrics = "";
    button.addEventListener("click", () => {
      grow();
      this.show();
    });
    details.append(button);
  }

  /** @param {Metric} metric */
  chart({ name }) {
    let chart = this.charts.get(name);
    if (!chart) {
      chart = new MetricChart(name, { entry: this.entry, urls: this.urls, state: this.state });
      this.charts.set(name, chart);
      this.seen.observe(chart.figure);
    }
    return chart;
  }
}
