// The run page: reads what the run has recorded, then gets new points from the stream or, without a stream, by polling.
// This module does not change the document. Only the methods of `display` change it, and each method may be missing.

/** @import { RunDisplay } from "./display.js" */
/** @import { RunModel } from "./model.js" */
/** @import { Wanted } from "./stores.js" */
/** @import { StreamState } from "./stream.js" */

import { ApiError, get } from "../lib/api.js";
import { Unreachable } from "../lib/reach.js";
import { isFinal } from "../lib/status.js";
import { Stream } from "./stream.js";

const ROW_MS = 5000;
const VERDICT_MS = 1000; // so that the shown verdict is at most 2 s old
const HISTORY = ["tracebacks", "history", "checkpoints"]; // parts of the page that a change of status updates while the run is open

/**
 * loading: the page reads the recorded data; live: a stream sends new points, or the browser is reopening it; polling:
 * there is no stream and the page polls every few seconds; ended: the run has ended and all data has been read.
 * @typedef {"loading" | "live" | "polling" | "ended"} PageState
 */

export class RunPage {
  /** @type {PageState} */
  state = "loading";
  /** @type {Partial<RunDisplay>} */
  display = {};
  rowReadAt = Date.now();
  verdictReadAt = -Infinity;
  gist = ""; // what the parts of the page about the verdict showed when they were last replaced

  /**
   * @param {{urls: {run: string, verdict: string, stream: string}, model: RunModel, status: string, wanted: () => Wanted}} run
   *   `status`: the status in the page; `wanted`: returns what the charts of the layer need
   */
  constructor({ urls, model, status, wanted }) {
    this.urls = urls;
    this.model = model;
    this.status = status;
    this.wanted = wanted;
    this.stream = new Stream(urls.stream, {
      events: {
        points: (event) => this.addPoints(event),
        alert: (event) => model.addAlert(event) && this.display.alert?.(event),
        status: (event) => this.changeStatus(event),
        reset: () => this.load(),
        live: ({ push }) => this.connection(push ? "live" : "slow"),
      },
      state: (how) => this.connection(how),
      poll: () => this.poll(),
    });
  }

  /** Whether the run may still record something. */
  get open() {
    return !isFinal(this.status);
  }

  /** Whether the extremes over all layers, which are part of the run's row, are old enough to be read again. */
  get rowIsOld() {
    return Date.now() - this.rowReadAt > ROW_MS;
  }

  get verdictIsOld() {
    return this.open && Date.now() - this.verdictReadAt > VERDICT_MS;
  }

  /** Requests the run's numbers, which load() awaits. */
  ask() {
    this.model.ask(this.wanted(), this.open);
  }

  /** Reads the recorded data, then follows the run from the last step that was read. @returns {Promise<void>} */
  async load() {
    this.state = "loading";
    try {
      await this.read();
    } catch (error) {
      if (error instanceof Unreachable) return this.stream.pollFirst(this.model.names);
      if (!(error instanceof DOMException && error.name === "AbortError")) throw error; // an abort means that a later load has begun
    }
  }

  /** @returns {Promise<void>} */
  async read() {
    this.display.reading?.();
    const seq = await this.model.load(this.wanted(), this.open, () => this.display.showRun?.());
    await this.display.showAll?.();
    if (!this.open) return this.stream.end();
    await this.catchUp();
    if (!this.open) return this.read(); // the run ended meanwhile, so its last steps may be missing
    return this.stream.open(this.model.names, seq);
  }

  // Reads the run's status again, because it may have changed since the page was rendered. The stream starts after the
  // data that was read and does not repeat such a change.
  async catchUp() {
    const run = await get(this.urls.run).catch(() => null);
    if (!run) return;
    const { status, status_reason: reason, step, steps_per_second } = run;
    await this.changeStatus({ status, reason, step, steps_per_second });
  }

  /** @param {PointsEvent} event */
  addPoints(event) {
    const names = this.model.apply(event);
    this.display.grow?.(names, event);
  }

  /** @param {StreamState} how */
  connection(how) {
    this.state = how === "polling" || how === "ended" ? how : "live";
    this.display.connection?.(how);
  }

  /** @param {StatusEvent} event */
  async changeStatus(event) {
    const before = this.status;
    this.setStatus(event);
    const { truncated_from: from } = event;
    if (from) {
      this.display.undone?.(from, event.reason ?? "");
      if (!this.model.truncate(from)) return this.load();
      this.display.refresh?.();
    }
    const changed = this.status !== before;
    this.display.wake?.(!this.open && changed);
    if (!this.open) this.stream.end();
    if (changed || from) await Promise.all([this.display.replace?.(this.open ? HISTORY : null), this.readRow()]);
  }

  /** @param {StatusEvent} event */
  setStatus(event) {
    this.status = event.status || this.status;
    this.display.status?.(event);
  }

  /** While there is no stream: reads the run's row, then all new data. @returns {Promise<number | undefined>} */
  async poll() {
    /** @type {RunAnswer} */
    const run = await get(this.urls.run);
    this.setStatus({ ...run, reason: run.status_reason });
    this.showRow(run);
    const seq = await this.model.load(this.wanted(), this.open);
    this.display.refresh?.();
    if (!this.open) this.stream.end();
    return this.open ? seq : undefined;
  }

  /** Reads the extremes over all layers from the server, because the page itself follows only one layer. */
  async readRow() {
    this.rowReadAt = Date.now();
    /** @type {RunAnswer | null} */
    const run = await get(this.urls.run).catch(() => null); // the status chip of the stream shows that the server cannot be reached
    if (!run) return;
    this.showRow(run);
  }

  /** Shows the newest verdict on an open run. Replaces its parts of the page if it has another gist. */
  async readVerdict() {
    this.verdictReadAt = Infinity; // one request at a time
    try {
      const { cause, unstable, events, summary } = await get(this.urls.verdict);
      const gist = [cause, Boolean(unstable), events.length].join();
      if (!this.open) return; // the verdict on an ended run comes with all other parts of the page
      if (gist !== this.gist) await this.display.replace?.(["verdict", "why"]);
      this.gist = gist;
      this.display.verdict?.(summary);
    } catch (error) {
      if (!(error instanceof Unreachable || error instanceof ApiError)) throw error; // the next points ask again
    } finally {
      this.verdictReadAt = Date.now();
    }
  }

  /** @param {RunAnswer} run */
  showRow(run) {
    this.rowReadAt = Date.now();
    this.display.row?.(run);
  }
}
