// The run page's controls, its address and its view say the same: a change of one is written into the others.

import { findAll } from "./dom.js";
import { REPLACED, replaceParts } from "./run_parts.js";
import { readRecords, recordOf, showRecord } from "./run_records.js";
import { readView, writeView } from "./view.js";

const FIELDS = /** @type {const} */ (["layer", "top", "eigenvalues", "scale", "axis", "rows", "smooth"]);

export class RunControls {
  learned = false;

  /**
   * @param {HTMLFormElement} form
   * @param {number | null | undefined} layer the one that is shown unless the address names another
   */
  constructor(form, layer) {
    this.form = form;
    this.first = String(layer ?? 0);
    this.records = readRecords(form);
    this.view = readView(location.search, this.records.map(({ id }) => id), this.first);
    /** @type {(changed: string) => void} */
    this.onChange = () => {};
    addEventListener(REPLACED, () => {
      this.records = readRecords(form);
      this.show();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement) this.set(event.target.name, event.target.value);
    });
    this.show();
  }

  /**
   * @param {string} name
   * @param {string | number} value
   */
  set(name, value) {
    if (name === "scale") this.view.scales = ""; // of all charts
    Object.assign(this.view, { [name]: name === "smooth" ? Number(value) : value });
    this.show();
    this.onChange(name);
  }

  /** The run has begun since the page was written: what it records is known now. */
  learn() {
    if (this.learned || this.records.some(({ kinds }) => kinds.length)) return;
    this.learned = true;
    void replaceParts(["records", "notes", "composition"]);
  }

  /** Brings fields and address up to the view. */
  show() {
    showRecord(recordOf(this.records, this.view.layer));
    for (const name of FIELDS) {
      const field = this.form.elements.namedItem(name);
      const value = String(this.view[name]);
      if ((field instanceof HTMLInputElement || field instanceof HTMLSelectElement) && field.value !== value) field.value = value;
    }
    const { from, to } = this.view;
    for (const part of findAll("[data-range]", HTMLElement)) {
      part.hidden = from === null;
      const text = part.querySelector("[data-range-text]");
      if (text) text.textContent = from === null ? "" : `steps ${from} to ${to}`;
    }
    const address = `${location.pathname}${writeView(this.view, location.search, this.first)}${location.hash}`;
    if (address !== `${location.pathname}${location.search}${location.hash}`) history.replaceState(history.state, "", address);
  }
}
