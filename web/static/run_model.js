// The numbers of one run on this page: its series by name, its alerts, and how new points get in.

import { get } from "./api.js";
import { SeriesStore } from "./store.js";
import { buckets } from "./typed.js";

const MAX_POINTS = 2000;
const MAX_VALUES = 600_000; // of one series in memory: wide layers get longer buckets

export class RunModel {
  /** @type {Map<string, SeriesStore>} */
  stores = new Map();
  /** @type {AlertAnswer[]} */
  alerts = [];
  /** @type {AbortController | null} */
  loading = null;

  /**
   * @param {{series: string, alerts: string}} urls
   * @param {Record<string, ChartEntry>} figures
   * @param {number} layer the one that is shown
   */
  constructor(urls, figures, layer) {
    this.urls = urls;
    this.figures = figures;
    this.layer = layer;
  }

  // Series the charts of the current layer need, whether or not they exist yet.
  get names() {
    const wanted = Object.values(this.figures).filter((f) => f.scope === "run" || f.scope === "layer");
    return [...new Set(wanted.flatMap((f) => f.series))].map((name) => name.replace("{layer}", String(this.layer)));
  }

  /** @returns {SeriesByName} */
  get data() {
    return Object.fromEntries([...this.stores].map(([name, store]) => [name, store.data]));
  }

  /**
   * Reads catalogue, alerts and series. A later call abandons this one.
   * @returns {Promise<number>} the sequence number up to which all of it is known
   */
  async load() {
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    /** @type {[{series: {name: string, width: number, points: number}[], seq: number}, {alerts: AlertAnswer[]}]} */
    const [{ series, seq }, { alerts }] = await Promise.all([get(this.urls.series, { signal }), get(this.urls.alerts, { signal })]);
    const wanted = new Set(this.names);
    const stores = new Map();
    await Promise.all(
      series.filter((s) => wanted.has(s.name) && s.points > 0).map(async ({ name, width }) => {
        const limit = pointsFor(width);
        const store = new SeriesStore(width, limit);
        /** @type {SeriesAnswer} */
        const answer = await get(this.seriesUrl(name, { max_points: limit }), { signal });
        store.load(buckets(answer), answer.last_step);
        stores.set(name, store);
      }),
    );
    this.stores = stores;
    this.alerts = alerts;
    return seq;
  }

  /**
   * Adds the points of an event of the live stream.
   * @param {PointsEvent} event
   * @returns {string[]} names of the series that grew
   */
  apply({ series }) {
    const grown = [];
    for (const part of series) {
      const store = this.stores.get(part.name) ?? new SeriesStore(part.width, pointsFor(part.width));
      this.stores.set(part.name, store);
      if (store.append(buckets(part))) grown.push(part.name);
    }
    return grown;
  }

  /**
   * Drops what was recorded from this step on.
   * @param {number} from
   * @returns {boolean} false when a series has to be read again
   */
  truncate(from) {
    this.alerts = this.alerts.filter((alert) => alert.step < from || alert.kind === "rolled_back");
    return [...this.stores.values()].map((store) => store.truncate(from)).every(Boolean);
  }

  /**
   * @param {AlertAnswer} alert
   * @returns {boolean} whether it was new
   */
  addAlert(alert) {
    const known = this.alerts.some((a) => a.id === alert.id);
    if (!known) this.alerts.push(alert);
    return !known;
  }

  /**
   * Newest row of a series; null when there is none.
   * @param {string} name
   */
  newest(name) {
    return this.stores.get(name)?.newest() ?? null;
  }

  /**
   * The series of one chart between two steps, at the best resolution that fits.
   * @param {string[]} names
   * @param {number} from
   * @param {number} to
   * @param {AbortSignal} signal
   * @returns {Promise<SeriesByName>}
   */
  async window(names, from, to, signal) {
    const bounds = { from_step: Math.max(1, Math.floor(from)), to_step: Math.max(1, Math.ceil(to)) };
    const parts = names.map(async (name) => {
      const store = this.stores.get(name);
      if (!store?.span) return []; // all of its points are already here
      const query = { ...bounds, max_points: pointsFor(store.width) };
      return [[name, buckets(await get(this.seriesUrl(name, query), { signal }))]];
    });
    return { ...this.data, ...Object.fromEntries((await Promise.all(parts)).flat()) };
  }

  /**
   * @param {string} name
   * @param {Record<string, number>} query
   */
  seriesUrl(name, query) {
    const values = Object.entries(query).map(([key, value]) => [key, String(value)]);
    return `${this.urls.series}/${name}?${new URLSearchParams([["format", "typed"], ...values])}`;
  }
}

/** @param {number} width */
export function pointsFor(width) {
  return Math.max(200, Math.min(MAX_POINTS, Math.floor(MAX_VALUES / width)));
}
