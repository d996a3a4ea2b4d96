// Synchronizes the run page's controls, its address and its view: a change in one of them is copied to the others.

import { findAll } from "../lib/dom.js";
import { REPLACED, replaceParts } from "./parts.js";
import { readRecords, recordOf, showRecord } from "./records.js";
import { readView, writeView } from "./view.js";

const FIELDS = /** @type {const} */ (["layer", "top", "eigenvalues", "scale", "axis", "rows", "smooth"]);

export class RunControls {
  learned = false;

  /**
   * @param {HTMLFormElement} form
   * @param {number | null | undefined} layer the layer that is shown unless the address names another layer
   */
  constructor(form, layer) {
    this.form = form;
    this.first = String(layer ?? 0);
    this.records = readRecords(form);
    this.view = readView(
      location.search,
      this.records.map(({ id }) => id),
      this.first,
    );
    /** @type {(changed: string) => void} */
    this.onChange = () => {};
    addEventListener(REPLACED, () => {
      this.records = readRecords(form);
      this.show();
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", (event) => {
      if (event.target instanceof HTMLInputElement || event.target instanceof HTMLSelectElement)
        this.set(event.target.name, event.target.value);
    });
    this.show();
  }

  /**
   * @param {string} name
   * @param {string | number} value
   */
  set(name, value) {
    if (name === "scale") this.view.scales = ""; // a new scale of the page replaces the scales of single charts
    Object.assign(this.view, { [name]: name === "smooth" ? Number(value) : value });
    this.show();
    this.onChange(name);
  }

  /** Called when new points arrive. If the run's layers were unknown when the page was rendered, reads them once. */
  learn() {
    if (this.learned || this.records.some(({ kinds }) => kinds.length)) return;
    this.learned = true;
    void replaceParts(["records", "notes", "composition"]);
  }

  /** Writes the view into fields and address. */
  show() {
    showRecord(recordOf(this.records, this.view.layer));
    for (const name of FIELDS) {
      const field = this.form.elements.namedItem(name);
      const value = String(this.view[name]);
      if ((field instanceof HTMLInputElement || field instanceof HTMLSelectElement) && field.value !== value)
        field.value = value;
    }
    const { from, to } = this.view;
    for (const part of findAll("[data-range]", HTMLElement)) {
      part.hidden = from === null;
      const text = part.querySelector("[data-range-text]");
      if (text) text.textContent = from === null ? "" : `steps ${from} to ${to}`;
    }
    const address = `${location.pathname}${writeView(this.view, location.search, this.first)}${location.hash}`;
    if (address !== `${location.pathname}${location.search}${location.hash}`)
      history.replaceState(history.state, "", address);
  }
}
