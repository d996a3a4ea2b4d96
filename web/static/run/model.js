// The numbers of one run: its series by name and its alerts. The model reads these numbers, adds new points and drops
// undone steps.

/** @import { Read, Stores, Wanted } from "./stores.js" */

import { get } from "../lib/api.js";
import { grow, holds, query, readStores } from "./stores.js";
import { SeriesStore } from "./store.js";
import { SummaryStore } from "../chart/summary.js";

export class RunModel {
  /** @type {Stores} */
  stores = new Map();
  /** A range of steps at full resolution, shown instead of `stores`; `open`: whether new points are still added. @type {{stores: Stores, open: boolean} | null} */
  window = null;
  /** @type {AlertAnswer[]} */
  alerts = [];
  /** @type {AbortController | null} */
  loading = null;
  /** Points that arrived after a range was requested. @type {PointsEvent[] | null} */
  missed = null;
  /** @type {{scalars: Promise<Read>, layer: Promise<Read>, alerts: Promise<{alerts: AlertAnswer[]}>} | null} */
  asked = null;
  /** @type {Record<string, ChartEntry>} */
  figures = {};

  /**
   * @param {{series: string, overview: string, alerts: string}} urls
   * @param {string} layer the record that is shown
   */
  constructor(urls, layer) {
    this.urls = urls;
    this.layer = layer;
  }

  // Names of the series that the charts of the current layer need, whether or not they exist yet.
  get names() {
    const wanted = Object.values(this.figures).filter((f) => f.scope === "run" || f.scope === "layer");
    return [...new Set(wanted.flatMap((f) => f.series))].map((name) => name.replace("{layer}", this.layer));
  }

  /** @param {string} name */
  store(name) {
    return this.window?.stores.get(name) ?? this.stores.get(name);
  }

  /** @returns {SeriesByName} */
  get data() {
    const all = new Map([...this.stores, ...(this.window?.stores ?? [])]);
    return Object.fromEntries([...all].map(([name, store]) => [name, store.data]));
  }

  /**
   * Requests scalars, layer and alerts, which load() awaits. A later call aborts these requests.
   * @param {Wanted} wanted
   * @param {boolean} live whether new points will arrive
   */
  ask(wanted, live) {
    this.loading?.abort();
    this.loading = new AbortController();
    const { signal } = this.loading;
    const scalars = this.read({ part: "scalars" }, signal);
    const layer = this.read({ part: "layer", ...query(wanted), reasons: true, each: live }, signal);
    /** @type {Promise<{alerts: AlertAnswer[]}>} */
    const alerts = get(this.urls.alerts, { signal });
    for (const answer of [scalars, layer, alerts]) answer.catch(() => {}); // load() awaits these promises and reports their errors
    this.asked = { scalars, layer, alerts };
    return this.asked;
  }

  /**
   * @param {Wanted} wanted
   * @param {boolean} live
   * @param {() => void} early called when everything except the layer has been read, unless the page already shows data
   * @returns {Promise<number>} the sequence number up to which all data has been read
   */
  async load(wanted, live, early = () => {}) {
    const { scalars, layer, alerts } = this.asked ?? this.ask(wanted, live);
    this.asked = null;
    const [first, known] = await Promise.all([scalars, alerts]);
    if (!this.stores.size) {
      [this.stores, this.alerts] = [first.stores, known.alerts];
      early();
    }
    const second = await layer;
    this.stores = new Map([...first.stores, ...second.stores]);
    this.alerts = known.alerts;
    return Math.min(first.seq, second.seq);
  }

  /**
   * Reads the layer's summaries again, with everything in `wanted`.
   * @param {Wanted} wanted
   */
  async complete(wanted) {
    const { layer } = this;
    const { stores } = await this.read({ part: "layer", ...query(wanted) }, new AbortController().signal);
    if (layer !== this.layer) return;
    for (const [name, store] of stores) if (this.stores.get(name) instanceof SummaryStore) this.stores.set(name, store);
  }

  /** Whether everything in `wanted` has been read. @param {Wanted} wanted */
  has(wanted) {
    return holds(this.stores, wanted) && (!this.window || holds(this.window.stores, wanted));
  }

  /** Whether the server has more detail than `stores`. */
  get coarse() {
    return [...this.stores.values()].some((store) => store.span > 0);
  }

  /**
   * Reads a range of steps of all series at once, at the best resolution that fits.
   * @param {number} from
   * @param {number} to
   * @param {{wanted: Wanted, open: boolean, signal: AbortSignal}} how `open`: whether new points will belong to the range
   */
  async zoom(from, to, { wanted, open, signal }) {
    const bounds = { from_step: Math.max(1, Math.floor(from)), to_step: Math.max(1, Math.ceil(to)) };
    /** @type {PointsEvent[]} */
    const missed = (this.missed = []);
    try {
      const { stores } = await this.read({ part: "all", ...bounds, ...query(wanted), each: open }, signal);
      this.window = { stores, open };
      if (open) for (const event of missed) grow(stores, event);
    } finally {
      if (this.missed === missed) this.missed = null;
    }
  }

  /**
   * @param {Record<string, string | number | boolean | null>} asked
   * @param {AbortSignal} signal
   */
  read(asked, signal) {
    return readStores(this.urls.overview, { layer: this.layer, ...asked }, signal);
  }

  /**
   * Adds the points of an event of the live stream.
   * @param {PointsEvent} event
   * @returns {string[]} names of the series that grew
   */
  apply(event) {
    this.missed?.push(event);
    if (this.window?.open) grow(this.window.stores, event);
    return grow(this.stores, event);
  }

  /**
   * Drops all points from step `from` on.
   * @param {number} from
   * @returns {boolean} false if a series has to be read again
   */
  truncate(from) {
    this.alerts = this.alerts.filter((alert) => alert.step < from || alert.kind === "rolled_back");
    const stores = [...this.stores.values(), ...(this.window?.stores.values() ?? [])];
    return stores.map((store) => store.truncate(from)).every(Boolean);
  }

  /**
   * @param {AlertAnswer} alert
   * @returns {boolean} whether the alert was new
   */
  addAlert(alert) {
    const known = this.alerts.find((a) => a.id === alert.id);
    if (known)
      Object.assign(known, alert); // an alert that lasts is sent again with its duration
    else this.alerts.push(alert);
    return !known;
  }

  /**
   * Newest value of a scalar; null if there is none.
   * @param {string} name
   */
  newest(name) {
    const store = this.stores.get(name);
    return store instanceof SeriesStore ? (store.newest()?.[0] ?? null) : null;
  }
}
