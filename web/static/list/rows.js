// Updates the rows of the list from a new copy that the server sent. Only cells that differ are replaced, so check marks,
// curves and an open edit form are preserved. Rows do not move while the pointer is over them.

import { findAll } from "../lib/dom.js";

/** The last copy of each cell from the server; a new copy is compared with it, because scripts change the shown cells. */
/** @type {WeakMap<Element, Node>} */
const sent = new WeakMap();

/** The rows of runs. @param {ParentNode} body */
export const rowsOf = (body) => findAll("tr[data-run]", HTMLElement, body);

/** The rows of runs and of folded sweeps. @param {ParentNode} body */
const allRows = (body) => findAll("tr[data-run], tr[data-sweep-row]", HTMLElement, body);

/** The number of rows that count towards the list's limit, without the rows below an opened sweep. @param {ParentNode} body */
export const counted = (body) => allRows(body).filter((row) => row.dataset.inside === undefined).length;

/** @param {HTMLElement} row */
const keyOf = (row) => row.dataset.run ?? `sweep ${row.dataset.sweepRow}`;

/** @param {ParentNode} body */
export function noteSent(body) {
  for (const row of allRows(body)) for (const cell of row.children) sent.set(cell, cell.cloneNode(true));
}

/**
 * @param {HTMLElement} body the shown rows
 * @param {ParentNode} fresh the server's new rows
 * @param {boolean} mayMove whether rows may be added, removed and moved now
 * @returns {number} 0 if the list now shows the server's rows; otherwise the number of new rows, at least 1
 */
export function merge(body, fresh, mayMove) {
  const shown = new Map(allRows(body).map((row) => [keyOf(row), row]));
  const wanted = allRows(fresh);
  for (const row of wanted) {
    const here = shown.get(keyOf(row));
    if (here) update(here, row);
  }
  const order = wanted.map(keyOf);
  const now = [...shown.keys()];
  if (order.join() === now.join()) return 0;
  if (!mayMove) {
    const added = order.filter((run) => !shown.has(run)).length;
    return added || 1;
  }
  const next = wanted.map((row) => {
    const here = shown.get(keyOf(row));
    if (here) return here;
    noteRow(row);
    return document.adoptNode(row);
  });
  const place = body.contains(document.activeElement) ? document.activeElement : null;
  body.replaceChildren(...next);
  if (place instanceof HTMLElement && place.isConnected) place.focus({ preventScroll: true });
  return 0;
}

/** @param {HTMLElement} row */
function noteRow(row) {
  for (const cell of row.children) sent.set(cell, cell.cloneNode(true));
}

/**
 * @param {HTMLElement} here
 * @param {HTMLElement} fresh
 */
function update(here, fresh) {
  if (here.querySelector("form")) return; // the user is editing this row
  const focused = here.contains(document.activeElement) ? document.activeElement : null;
  Object.assign(here.dataset, { ...fresh.dataset });
  here.className = fresh.className;
  if (here.children.length !== fresh.children.length) return here.replaceChildren(...fresh.children);
  const cells = [...fresh.children]; // a copy, because adopting a cell removes it from the row
  [...here.children].forEach((cell, i) => {
    const other = cells[i];
    const was = sent.get(cell);
    if (was?.isEqualNode(other) || cell.querySelector("input[type=checkbox]") || (focused && cell.contains(focused)))
      return;
    sent.set(other, other.cloneNode(true));
    cell.replaceWith(document.adoptNode(other));
  });
}
