// The server's rows put in the place of those that are shown: only what differs is touched, so that ticks, curves and an edit
// that is going on stay, and rows keep their place while the pointer is over them.

import { findAll } from "./dom.js";

/** What the server sent for a cell that is shown: scripts change cells (times, curves), the server's word is compared with its own. */
/** @type {WeakMap<Element, Node>} */
const sent = new WeakMap();

/** @param {ParentNode} body */
export const rowsOf = (body) => findAll("tr[data-run]", HTMLElement, body);

/** @param {ParentNode} body */
export function noteSent(body) {
  for (const row of rowsOf(body)) for (const cell of row.children) sent.set(cell, cell.cloneNode(true));
}

/**
 * @param {HTMLElement} body the rows that are shown
 * @param {ParentNode} fresh the server's
 * @param {boolean} mayMove whether rows may come, go and change places now
 * @returns {number} rows that are new, gone or elsewhere but were left as they were
 */
export function merge(body, fresh, mayMove) {
  const shown = new Map(rowsOf(body).map((row) => [row.dataset.run, row]));
  const wanted = rowsOf(fresh);
  for (const row of wanted) {
    const here = shown.get(row.dataset.run);
    if (here) update(here, row);
  }
  const order = wanted.map((row) => row.dataset.run);
  const now = [...shown.keys()];
  if (order.join() === now.join()) return 0;
  if (!mayMove) {
    const added = order.filter((run) => !shown.has(run)).length;
    return added || 1;
  }
  const next = wanted.map((row) => {
    const here = shown.get(row.dataset.run);
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
  if (here.querySelector("form")) return; // it is being edited
  const focused = here.contains(document.activeElement) ? document.activeElement : null;
  Object.assign(here.dataset, { ...fresh.dataset });
  here.className = fresh.className;
  if (here.children.length !== fresh.children.length) return here.replaceChildren(...fresh.children);
  const cells = [...fresh.children]; // those that are taken from it leave it
  [...here.children].forEach((cell, i) => {
    const other = cells[i];
    const was = sent.get(cell);
    if (was?.isEqualNode(other) || cell.querySelector("input[type=checkbox]") || (focused && cell.contains(focused))) return;
    sent.set(other, other.cloneNode(true));
    cell.replaceWith(document.adoptNode(other));
  });
}
