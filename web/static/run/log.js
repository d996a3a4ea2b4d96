// The log of a run page: polls for new text while the run trains and the section is visible.

import { get } from "../lib/api.js";
import { find, given } from "../lib/dom.js";
import { isFinal } from "../lib/status.js";

const POLL_MS = 1000;
const LAST_POLLS = 3; // number of polls after the run's end, because the last output arrives late
const MOST = 600_000; // maximum number of characters on the page

export class RunLog {
  /** @param {HTMLElement} section */
  constructor(section) {
    this.url = given(section, "logUrl");
    this.text = find("[data-log-text]", HTMLElement, section);
    this.empty = find("[data-log-empty]", HTMLElement, section);
    this.next = Number(given(section, "next")); // position of the next text; the page already contains the text before it
    this.attempt = Number(given(section, "attempt"));
    this.text.scrollTop = this.text.scrollHeight;
    this.pollsLeft = LAST_POLLS;
    this.visible = false;
    this.reading = false;
    new IntersectionObserver((entries) => {
      this.visible = entries.some((entry) => entry.isIntersecting);
      void this.poll();
    }).observe(section);
    setInterval(() => void this.poll(), POLL_MS);
  }

  /** Called when the run's data or status has changed, possibly after its end. */
  wake() {
    this.pollsLeft = LAST_POLLS;
  }

  async poll() {
    if (!this.visible || document.hidden || this.reading || this.pollsLeft <= 0) return;
    this.reading = true;
    try {
      this.show(await get(`${this.url}?after=${this.next}`));
    } catch {
      // the page already shows that the server is unreachable, and the next poll tries again
    } finally {
      this.reading = false;
    }
  }

  /** @param {LogAnswer} answer */
  show({ status, pieces, next }) {
    this.next = next;
    this.pollsLeft = isFinal(status) ? this.pollsLeft - 1 : LAST_POLLS;
    if (!pieces.length) return;
    const atEnd = this.text.hidden || this.text.scrollTop + this.text.clientHeight >= this.text.scrollHeight - 4;
    this.empty.hidden = true;
    this.text.hidden = false;
    for (const piece of pieces) this.add(piece);
    let length = this.text.textContent?.length ?? 0;
    while (length > MOST && this.text.firstChild !== this.text.lastChild) {
      length -= this.text.firstChild?.textContent?.length ?? 0;
      this.text.firstChild?.remove();
    }
    if (atEnd) this.text.scrollTop = this.text.scrollHeight;
  }

  /** @param {LogPiece} piece */
  add({ attempt, text, cut }) {
    if (cut) this.line(`${cut.toLocaleString("en-US")} characters were dropped`);
    if (attempt !== this.attempt) this.line(`attempt ${attempt}`);
    this.attempt = attempt;
    this.text.append(text);
  }

  /** @param {string} text */
  line(text) {
    const mark = document.createElement("span");
    mark.className = "muted";
    mark.textContent = `— ${text} —\n`;
    this.text.append(mark);
  }
}
