// What is watched of a run's layers, as the page's choice of layers lists it, and what the page says of the one that is shown.

import { find, findAll, given } from "./dom.js";

/**
 * @param {HTMLFormElement} form the page's controls
 * @returns {LayerRecord[]}
 */
export function readRecords(form) {
  return [...find("[name=layer]", HTMLSelectElement, form).options].map((option) => ({
    id: option.value,
    layer: Number(given(option, "layer")),
    eigenvalues: Number(given(option, "eigenvalues")),
    kinds: given(option, "kinds").split(" ").filter(Boolean),
    map: given(option, "map"),
    bounded: given(option, "bounded") === "true",
  }));
}

/**
 * The record of this id; of one that the page does not list what its id says.
 * @param {LayerRecord[]} records
 * @param {string} id
 * @returns {LayerRecord}
 */
export function recordOf(records, id) {
  return records.find((one) => one.id === id) ?? { id, layer: Number.parseInt(id, 10), eigenvalues: 0, kinds: [], map: "", bounded: true };
}

/** Whether it holds its layer's eigenvalues, which alerts and verdict name. @param {LayerRecord} record */
export const holdsEigenvalues = ({ id, layer }) => id === String(layer);

/**
 * The record that an alert is about.
 * @param {Pick<AlertAnswer, "series" | "layer">} alert
 * @returns {string | null}
 */
export function recordOfAlert({ series, layer }) {
  const of = /^ssm\/([^/]+)\//.exec(series);
  if (of) return of[1];
  return layer === null || layer === undefined ? null : String(layer);
}

/** Shows what is said of this record, and of no other. @param {LayerRecord} record */
export function showRecord({ id, bounded }) {
  for (const note of findAll("[data-of-record]", HTMLElement)) note.hidden = given(note, "ofRecord") !== id;
  for (const caption of findAll("[data-bounded]", HTMLElement)) {
    if (!(caption instanceof HTMLOptionElement)) caption.hidden = (given(caption, "bounded") === "true") !== bounded;
  }
}
