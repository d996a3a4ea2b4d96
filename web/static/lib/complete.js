// Completes the text of the filter: first names of fields, then the values of a field. The input is an ARIA combobox;
// Enter without a chosen completion applies the filter.

import { get } from "./api.js";
import { find, given } from "./dom.js";

/** @typedef {{name: string, kind: string, values: string[]}} Field */

const MOST = 8;
const OPERATOR = /^([\w.]+)(>=|<=|!=|=|<|>|~)("?[^"]*)$/;
const NUMBERS = ["number", "time", "seconds"];

/**
 * The completions of the word before the cursor, each as [displayed text, replacement].
 * @param {Field[]} fields
 * @param {string} word
 * @returns {[string, string][]}
 */
export function completions(fields, word) {
  const match = OPERATOR.exec(word);
  if (match) {
    const [, name, operator, begun] = match;
    const typed = begun.replace(/^"/, "").toLowerCase();
    const values = fields.find((field) => field.name === name)?.values ?? [];
    const fitting = values.filter((value) => value.toLowerCase().includes(typed) && value.toLowerCase() !== typed);
    fitting.sort((a, b) => Number(b.toLowerCase().startsWith(typed)) - Number(a.toLowerCase().startsWith(typed)));
    return fitting.slice(0, MOST).map((value) => [value, `${name}${operator}${quoted(value)} `]);
  }
  const typed = word.replace(/^\(/, "").toLowerCase();
  if (!typed) return [];
  const rank = (/** @type {string} */ name) =>
    name.startsWith(typed) ? 0 : name.split(".").pop()?.startsWith(typed) ? 1 : 2;
  const fitting = fields.filter(({ name }) => name.toLowerCase().includes(typed));
  fitting.sort((a, b) => rank(a.name) - rank(b.name));
  return fitting
    .slice(0, MOST)
    .map(({ name, kind }) => [
      `${name}${NUMBERS.includes(kind) ? " (number)" : ""}`,
      `${word.startsWith("(") ? "(" : ""}${name}${NUMBERS.includes(kind) ? "" : "="}`,
    ]);
}

/** @param {string} value */
const quoted = (value) => (/[\s"=<>~!(),]/.test(value) ? `"${value.replace(/["\\]/g, "\\$&")}"` : value);

/** @param {HTMLInputElement} box @param {HTMLElement} options */
function combobox(box, options) {
  /** @type {Promise<Field[]> | null} */
  let fields = null;
  /** @type {[string, string][]} */
  let offered = [];
  let at = -1;

  const word = () => /(?:[^\s"]|"[^"]*"?)*$/.exec(box.value.slice(0, box.selectionStart ?? 0))?.[0] ?? "";
  const close = () => {
    options.hidden = true;
    at = -1;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  };
  const draw = () => {
    options.replaceChildren(
      ...offered.map(([label], i) => {
        const option = document.createElement("li");
        option.id = `completion-${i}`;
        option.setAttribute("role", "option");
        option.setAttribute("aria-selected", String(i === at));
        option.textContent = label;
        return option;
      }),
    );
    options.hidden = offered.length === 0;
    box.setAttribute("aria-expanded", String(offered.length > 0));
    if (at >= 0) box.setAttribute("aria-activedescendant", `completion-${at}`);
    else box.removeAttribute("aria-activedescendant");
  };
  /** @param {number} i */
  const take = (i) => {
    const end = box.selectionStart ?? 0;
    const start = end - word().length;
    box.setRangeText(offered[i][1], start, end, "end");
    close();
    look();
  };
  const look = async () => {
    fields ??= get(given(box, "fields")).then(
      (answer) => answer.fields,
      () => [],
    );
    const known = await fields;
    offered = completions(known, word());
    at = -1;
    draw();
  };

  for (const [name, value] of Object.entries({
    role: "combobox",
    "aria-autocomplete": "list",
    "aria-expanded": "false",
    "aria-controls": options.id,
  }))
    box.setAttribute(name, value);
  box.addEventListener("input", look);
  box.addEventListener("blur", close);
  box.form?.addEventListener("submit", close);
  box.addEventListener("keydown", (event) => {
    if (options.hidden) return;
    if (event.key === "Escape") close();
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      at = (at + step + offered.length + (at < 0 && step < 0 ? 1 : 0)) % offered.length;
      draw();
    } else if ((event.key === "Enter" || event.key === "Tab") && at >= 0) take(at);
    else return;
    event.preventDefault();
  });
  options.addEventListener("mousedown", (event) => {
    event.preventDefault(); // so that the input keeps the focus
    const option = event.target instanceof Element ? event.target.closest("li") : null;
    if (option) take([...options.children].indexOf(option));
  });
}

if (typeof document !== "undefined") combobox(find("#q", HTMLInputElement), find("#completions", HTMLElement));
