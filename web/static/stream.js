// The live stream of one run: one EventSource, its state, and the way back when it breaks.
// states: live, slow (the server itself is not woken and looks every few seconds), reconnecting (the browser tries again by itself), polling (the server refused the stream), ended.

const POLL_MS = 5000;
const EVENTS = ["points", "alert", "status", "reset", "live"];

export class Stream {
  // handlers: one per event name, `state` for changes of it, `poll` called every few seconds while there is no stream.
  constructor(url, handlers) {
    Object.assign(this, { url, handlers, source: null, timer: null });
  }

  // `series` are the names wanted; events up to `after` are already here.
  open(series, after) {
    this.close();
    const source = new EventSource(`${this.url}?${new URLSearchParams({ after, series: series.join(",") })}`);
    this.source = source;
    source.onopen = () => this.become("live");
    source.onerror = () => {
      const refused = source.readyState === EventSource.CLOSED;
      this.become(refused ? "polling" : "reconnecting");
      if (refused) this.poll(series);
    };
    for (const name of EVENTS) {
      source.addEventListener(name, (event) => {
        if (source !== this.source) return;
        this.handlers[name]?.(JSON.parse(event.data || "{}"));
      });
    }
  }

  // Asks until the stream opens again; `poll` resolves to the seq from which the stream can go on.
  poll(series) {
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const seq = await this.handlers.poll().catch(() => null);
      if (seq === null) this.poll(series);
      else this.open(series, seq);
    }, POLL_MS);
  }

  end() {
    this.close();
    this.become("ended");
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  become(state) {
    this.handlers.state?.(state);
  }
}
