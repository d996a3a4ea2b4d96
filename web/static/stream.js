// The live stream of one run: one EventSource, its state, and how it opens again after the server refused it.

const POLL_MS = 5000;

/**
 * live; slow: the server is not told of new points and looks every few seconds; reconnecting: the browser tries again by
 * itself; polling: the server refused the stream; ended.
 * @typedef {"live" | "slow" | "reconnecting" | "polling" | "ended"} StreamState
 */

/**
 * @typedef {object} Handlers
 * @property {Record<string, (event: any) => unknown>} events one for each name of an event
 * @property {(state: StreamState) => void} state
 * @property {() => Promise<number | undefined>} poll called every few seconds while there is no stream; gives the position from
 *   which to go on, nothing when the run has ended
 */

export class Stream {
  /** @type {EventSource | null} */
  source = null;
  /** @type {number | undefined} */
  timer = undefined;

  /**
   * @param {string} url
   * @param {Handlers} handlers
   */
  constructor(url, handlers) {
    this.url = url;
    this.handlers = handlers;
  }

  /**
   * @param {string[]} series the names wanted
   * @param {number} after events up to this one are already here
   */
  open(series, after) {
    this.close();
    const source = new EventSource(`${this.url}?${new URLSearchParams({ after: String(after), series: series.join(",") })}`);
    this.source = source;
    source.onopen = () => this.handlers.state("live");
    source.onerror = () => {
      const refused = source.readyState === EventSource.CLOSED;
      this.handlers.state(refused ? "polling" : "reconnecting");
      if (refused) this.poll(series);
    };
    for (const [name, handle] of Object.entries(this.handlers.events)) {
      source.addEventListener(name, (event) => {
        if (source === this.source) handle(JSON.parse(event.data || "{}"));
      });
    }
  }

  /**
   * What the stream goes on from cannot be had: asked for again until there is an answer.
   * @param {string[]} series
   */
  lost(series) {
    this.close();
    this.handlers.state("polling");
    this.poll(series);
  }

  /**
   * Asks every few seconds, and opens the stream again after the first answer.
   * @param {string[]} series
   */
  poll(series) {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const seq = await this.handlers.poll().catch(() => null);
      if (seq === null) this.poll(series);
      else if (seq !== undefined) this.open(series, seq);
    }, POLL_MS);
  }

  end() {
    this.close();
    this.handlers.state("ended");
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }
}
