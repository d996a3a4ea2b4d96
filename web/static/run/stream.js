// The live stream of one run: an EventSource and its state. If the server refuses the stream, the page polls until the
// stream can be opened again.

const POLL_MS = 5000;

/**
 * live; slow: the server polls the database every few seconds; reconnecting: the browser opens the stream again;
 * polling: the server refused the stream; ended.
 * @typedef {"live" | "slow" | "reconnecting" | "polling" | "ended"} StreamState
 */

/**
 * @typedef {object} Handlers
 * @property {Record<string, (event: any) => unknown>} events one handler per event name
 * @property {(state: StreamState) => void} state
 * @property {() => Promise<number | undefined>} poll called every few seconds while there is no stream; returns the
 *   position to continue from, or undefined if the run has ended
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
   * @param {string[]} series names of the series to send
   * @param {number} after sequence number of the last known event
   */
  open(series, after) {
    this.close();
    const source = new EventSource(
      `${this.url}?${new URLSearchParams({ after: String(after), series: series.join(",") })}`,
    );
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
   * Called when the page could not read the position at which the stream starts: polls until the server answers.
   * @param {string[]} series
   */
  pollFirst(series) {
    this.close();
    this.handlers.state("polling");
    this.poll(series);
  }

  /**
   * Polls every few seconds, and opens the stream again after the first answer.
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
