// Elements of the page, found with their type: a page and its module that no longer fit are an error at once.

import { reach } from "./reach.js";

/**
 * The first element that `selector` finds below `root`. Throws when there is none, or when it is no `Kind`.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} Kind
 * @param {ParentNode} [root]
 * @returns {T}
 */
export function find(selector, Kind, root = document) {
  const element = root.querySelector(selector);
  if (!(element instanceof Kind)) throw new Error(`${selector} is ${element?.tagName ?? "not on this page"}; wanted is ${Kind.name}`);
  return element;
}

/**
 * All elements that `selector` finds below `root` and that are of this `Kind`.
 * @template {Element} T
 * @param {string} selector
 * @param {new () => T} Kind
 * @param {ParentNode} [root]
 * @returns {T[]}
 */
export function findAll(selector, Kind, root = document) {
  return [...root.querySelectorAll(selector)].filter((element) => element instanceof Kind).map((element) => /** @type {T} */ (element));
}

/**
 * An attribute that the template must have set, by its name in `dataset`.
 * @param {HTMLElement | SVGElement} element
 * @param {string} name
 */
export function given(element, name) {
  const value = element.dataset[name];
  if (value === undefined) throw new Error(`<${element.tagName.toLowerCase()}> has no data attribute ${name}`);
  return value;
}

/**
 * Another copy of this page from the server, to take parts from.
 * @returns {Promise<Document | null>} null when the server refuses
 */
export async function freshPage() {
  const answer = await reach(location.href);
  return answer.ok ? new DOMParser().parseFromString(await answer.text(), "text/html") : null;
}

/**
 * Puts the part of `page` that `selector` finds in the place of this page's.
 * @param {Document} page
 * @param {string} selector
 */
export function replacePart(page, selector) {
  const fresh = page.querySelector(selector);
  if (fresh) document.querySelector(selector)?.replaceWith(document.adoptNode(fresh));
}
