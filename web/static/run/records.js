// The records of a run's layers, which are read from the page's selection of layers, and the notes on the shown record.

import { find, findAll, given } from "../lib/dom.js";

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
 * The record with this id; if the page does not list the record, a record made from the id alone.
 * @param {LayerRecord[]} records
 * @param {string} id
 * @returns {LayerRecord}
 */
export function recordOf(records, id) {
  return (
    records.find((one) => one.id === id) ?? {
      id,
      layer: Number.parseInt(id, 10),
      eigenvalues: 0,
      kinds: [],
      map: "",
      bounded: true,
    }
  );
}

/**
 * Whether the record holds its layer's eigenvalues. Alerts and the verdict refer only to such records.
 * @param {LayerRecord} record
 */
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

/** Shows the notes on this record and hides the notes on other records. @param {LayerRecord} record */
export function showRecord({ id, bounded }) {
  for (const note of findAll("[data-of-record]", HTMLElement)) note.hidden = given(note, "ofRecord") !== id;
  for (const caption of findAll("[data-bounded]", HTMLElement)) {
    if (!(caption instanceof HTMLOptionElement)) caption.hidden = (given(caption, "bounded") === "true") !== bounded;
  }
}
