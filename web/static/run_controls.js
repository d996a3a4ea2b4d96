// The run page's controls, its address and its view say the same: a change of one is written into the others.

import { findAll } from "./dom.js";
import { readView, writeView } from "./view.js";

const FIELDS = /** @type {const} */ (["layer", "top", "eigenvalues", "scale", "axis", "rows", "smooth"]);

export class RunControls {
  /**
   * @param {HTMLFormElement} form
   * @param {number} layers
   * @param {number} first the layer that is shown unless the address names one
   */
  constructor(form, layers, first) {
    this.form = form;
    this.first = first;
    this.view = readView(location.search, layers, first);
    /** @type {(changed: string) => void} */
    this.onChange = () => {};
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
    Object.assign(this.view, { [name]: name === "layer" || name === "smooth" ? Number(value) : value });
    this.show();
    this.onChange(name);
  }

  /** Brings fields and address up to the view. */
  show() {
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
