// The sweep part of the form for a new run. Every field of the configuration except NO_AXES can be an axis.

import { find } from "../lib/dom.js";

const NO_AXES = ["name", "tags"]; // fields that cannot be an axis; the server generates the names of a sweep's runs

/**
 * Offers the fields that are not an axis yet. A chosen field gets its own input.
 * @param {HTMLFormElement} form
 * @param {string[]} paths
 */
export function offerAxes(form, paths) {
  const select = find("[data-add-axis]", HTMLSelectElement, form);
  const axes = find("[data-axes]", HTMLElement, form);
  /** @param {string} path */
  const isAxis = (path) => axes.querySelector(`[data-grid="${CSS.escape(path)}"]`) !== null;
  for (const path of [...new Set(paths)].filter((p) => !NO_AXES.includes(p) && !isAxis(p)))
    select.add(new Option(path, path));
  select.addEventListener("change", () => {
    const path = select.value;
    if (!path || isAxis(path)) return;
    axes.append(axisField(path));
    select.querySelector(`option[value="${CSS.escape(path)}"]`)?.remove();
    select.value = "";
    find(`[data-grid="${CSS.escape(path)}"]`, HTMLInputElement, axes).focus();
  });
}

/** @param {string} path */
function axisField(path) {
  const [box, label, input, error] = ["div", "label", "input", "span"].map((tag) => document.createElement(tag));
  box.className = "field";
  label.textContent = path;
  label.setAttribute("for", (input.id = `g-${path.replaceAll(".", "-")}`));
  input.dataset.grid = path;
  input.setAttribute("autocomplete", "off");
  input.setAttribute("placeholder", "values, separated by commas");
  error.className = "error";
  error.dataset.errorFor = `grid.${path}`;
  error.setAttribute("role", "alert");
  error.hidden = true;
  box.append(label, input, error);
  return box;
}
