// The export button of every chart: saves the server's figure, drawn by Plotly at a chosen size, as a file.

import { describe, get } from "./api.js";
import { picture } from "../chart/chart.js";
import { find, findAll, given } from "./dom.js";

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
    if (size.value) [width.value, height.value] = size.value.split("x");
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
    const format = event.submitter instanceof HTMLButtonElement ? event.submitter.value : "svg";
    const name = given(link, "export");
    const url = figureUrl(link.href, shown(name).view ?? {}, {
      width: width.value,
      height: height.value,
      format: format === "html" ? "html" : "json",
    });
    error.hidden = true;
    try {
      if (format === "html") save(url, "");
      else
        save(
          await drawn(url, format, Number(width.value), Number(height.value)),
          `${given(link, "file")}-${name}.${format}`,
        );
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
 * The picture as the URL of a blob.
 * @param {string} url
 * @param {string} format
 * @param {number} width
 * @param {number} height
 */
async function drawn(url, format, width, height) {
  const [figure, size] = [await get(url), { format, width, height, scale: format === "png" ? 2 : 1 }];
  await picture(figure, size); // at the first call Plotly measures texts and orders elements differently, so the first result is discarded
  const [head, data] = split(await picture(figure, size), ",");
  const bytes = head.endsWith(";base64")
    ? Uint8Array.from(atob(data), (character) => character.charCodeAt(0))
    : new TextEncoder().encode(fixedNames(decodeURIComponent(data)));
  return URL.createObjectURL(new Blob([bytes], { type: head.slice("data:".length).split(/[;,]/)[0] }));
}

/**
 * The SVG with the random part of plotly.js's element names replaced, so that equal figures give equal files. The
 * Python client does the same.
 * @param {string} svg
 */
export function fixedNames(svg) {
  const rest = split(svg, 'id="defs-')[1];
  return rest ? svg.replaceAll(rest.slice(0, 6), "figure") : svg;
}

/**
 * @param {string} text
 * @param {string} by
 */
function split(text, by) {
  const at = text.indexOf(by);
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + by.length)];
}

/**
 * @param {string} href
 * @param {string} name file name; "" uses the name that the server gives
 */
function save(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
  if (href.startsWith("blob:")) setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
