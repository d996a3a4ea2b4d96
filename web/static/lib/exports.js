// The export button of every chart: a dialog with links to the server's files of the chart, in a size that the reader chooses.

import { describe, refusal } from "./api.js";
import { find, findAll, given } from "./dom.js";
import { reach } from "./reach.js";

const PAPER = new Set(["column", "page"]); // sizes that the server knows in mm

/**
 * The part of a chart's data that the page currently shows.
 * @typedef {object} Shown
 * @property {Record<string, string | number | null>} [view] parameters of the figure's URL; null omits a parameter
 * @property {{name: string, href: string}[]} [data] files with the chart's numbers
 * @property {string} [note] what the page shows but the file does not
 */

/** @param {(chart: string) => Shown} shown */
export function exportable(shown) {
  const dialog = find("dialog[data-exports]", HTMLDialogElement);
  const form = find("form", HTMLFormElement, dialog);
  const [size, width, height] = ["size", "width", "height"].map(
    (name) => /** @type {HTMLInputElement} */ (form.elements.namedItem(name)),
  );
  const pixels = find("[data-part=pixels]", HTMLElement, dialog);
  const error = find("[data-field=error]", HTMLElement, dialog);
  /** @type {HTMLAnchorElement | null} */
  let link = null;

  for (const one of findAll("a[data-export]", HTMLAnchorElement)) {
    one.setAttribute("aria-haspopup", "dialog");
    one.addEventListener("click", (event) => {
      event.preventDefault();
      link = one;
      error.hidden = true;
      say(dialog, given(one, "title"), shown(given(one, "export")));
      dialog.showModal();
    });
  }
  size.addEventListener("change", () => {
    if (size.value.includes("x")) [width.value, height.value] = size.value.split("x");
    pixels.hidden = PAPER.has(size.value);
  });
  for (const field of [width, height]) {
    field.addEventListener("input", () => {
      size.value = `${width.value}x${height.value}`;
      if (!size.value) size.value = ""; // a custom size
    });
  }
  find("[data-close]", HTMLElement, dialog).addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (!link) return;
    const format = event.submitter instanceof HTMLButtonElement ? event.submitter.value : "pdf";
    const url = figureUrl(link.href, shown(given(link, "export")).view ?? {}, {
      ...(PAPER.has(size.value) ? { size: size.value } : { width: width.value, height: height.value }),
      format,
    });
    error.hidden = true;
    try {
      await save(url, `${given(link, "file")}-${given(link, "export")}.${format}`);
    } catch (why) {
      error.textContent = describe(why);
      error.hidden = false;
    }
  });
}

/**
 * @param {HTMLElement} dialog
 * @param {string} title
 * @param {Shown} shown
 */
function say(dialog, title, { data = [], note = "" }) {
  find("[data-field=title]", HTMLElement, dialog).textContent = `“${title}”`;
  const [numbers, notes] = ["data", "note"].map((name) => find(`[data-field=${name}]`, HTMLElement, dialog));
  numbers.hidden = !data.length;
  const links = data.flatMap(({ name, href }) => [
    " ",
    Object.assign(document.createElement("a"), { href, textContent: name, download: "" }),
  ]);
  numbers.replaceChildren("The numbers as CSV:", ...links);
  notes.textContent = note;
  notes.hidden = !note;
}

/**
 * @param {string} base
 * @param {...Record<string, string | number | null>} parameters a later value replaces an earlier value
 */
export function figureUrl(base, ...parameters) {
  const url = new URL(base);
  for (const [name, value] of parameters.flatMap((some) => Object.entries(some))) {
    if (value === null || value === "") url.searchParams.delete(name);
    else url.searchParams.set(name, String(value));
  }
  return url.href;
}

/**
 * The values of these parameters in this page's address.
 * @param {...string} names
 */
export function addressed(...names) {
  const address = new URLSearchParams(location.search);
  return Object.fromEntries(names.map((name) => [name, address.get(name)]));
}

/**
 * Saves the server's response as a file.
 * @param {string} url
 * @param {string} name
 */
async function save(url, name) {
  const answer = await reach(url);
  if (!answer.ok) throw await refusal(answer);
  const href = URL.createObjectURL(await answer.blob());
  Object.assign(document.createElement("a"), { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
