// Finds elements of the page by type, so that a script that does not match its template fails at once.

import { reach } from "./reach.js";

/**
 * The first element that `selector` finds below `root`. Throws an error if there is none or if it is not a `Kind`.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} Kind
 * @param {ParentNode} [root]
 * @returns {T}
 */
export function find(selector, Kind, root = document) {
  const element = root.querySelector(selector);
  if (!(element instanceof Kind))
    throw new Error(`${selector} is ${element?.tagName ?? "not on this page"}; expected ${Kind.name}`);
  return element;
}

/**
 * All elements of this `Kind` that `selector` finds below `root`.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} Kind
 * @param {ParentNode} [root]
 * @returns {T[]}
 */
export function findAll(selector, Kind, root = document) {
  return [...root.querySelectorAll(selector)]
    .filter((element) => element instanceof Kind)
    .map((element) => /** @type {T} */ (element));
}

/**
 * The value of a data attribute that the template must set, by its name in `dataset`.
 * @param {HTMLElement | SVGElement} element
 * @param {string} name
 */
export function given(element, name) {
  const value = element.dataset[name];
  if (value === undefined) throw new Error(`<${element.tagName.toLowerCase()}> has no data attribute ${name}`);
  return value;
}

/**
 * Fetches a new copy of this page from the server; each caller uses a part of the copy.
 * @returns {Promise<Document | null>} null when the server refuses
 */
export async function freshPage() {
  const answer = await reach(location.href);
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

/**
 * Replaces the element that `selector` finds with the same element of `page`.
 * @param {Document} page
 * @param {string} selector
 */
export function replacePart(page, selector) {
  const fresh = page.querySelector(selector);
  if (fresh) document.querySelector(selector)?.replaceWith(document.adoptNode(fresh));
}
