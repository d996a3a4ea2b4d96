// The submission form: offers only possible choices, previews the request, and shows the server's errors beside the
// fields with the errors.

import { send } from "../lib/api.js";
import { axisValues } from "./axis_values.js";
import { getPath, parseField, sentOf, setPath, toNumber } from "./config_form.js";
import { find, findAll, given } from "../lib/dom.js";
import { layerChoice } from "./layer_choice.js";
import { clearErrors, showErrors } from "./problems.js";
import { offerAxes } from "./axes.js";
import { searchOf } from "./search.js";

/** @typedef {HTMLInputElement | HTMLSelectElement} Field */

const form = find("form[data-new]", HTMLFormElement);
/** @type {Record<string, any>} */
const defaults = JSON.parse(given(form, "defaults"));
/** @type {{defaults: Record<string, Record<string, any>>, choices: Record<string, import("./layer_choice.js").MapChoice[]>}} */
const layers = JSON.parse(given(form, "layers"));
const inputs = fields("[data-path]");
const places = fields("[data-place]");
const submit = find("aside button[type=submit]", HTMLButtonElement, form);

/**
 * @param {string} selector
 * @returns {Field[]}
 */
function fields(selector) {
  return findAll(selector, HTMLElement, form).filter(
    (e) => e instanceof HTMLInputElement || e instanceof HTMLSelectElement,
  );
}

/** Whether the field belongs to a task or layer that is not chosen. @param {Field} element */
const isOfAnother = (element) => element.closest(":is([data-task], [data-of])[hidden]") !== null;

/** @param {string} path */
function fieldOf(path) {
  const at = path === "model.layer" ? "model.layer.name" : path;
  return inputs.find((i) => i.dataset.path === at && !isOfAnother(i)) ?? places.find((i) => i.dataset.place === path);
}

/**
 * A field that the form always has.
 * @param {string} path
 */
function required(path) {
  const element = fieldOf(path);
  if (!element) throw new Error(`the form has no field ${path}`);
  return element;
}

function config() {
  /** @type {Record<string, any>} */
  const out = {};
  for (const element of inputs) {
    if (isOfAnother(element) || layer.leavesOut(element)) continue;
    const { path = "", type } = element.dataset;
    const checked = element instanceof HTMLInputElement && element.checked;
    const value = parseField(path === "tags" ? "tags" : type, element.value, checked);
    // an empty field means null if null is allowed, else the default
    const nullable =
      getPath(defaults, path) === null || path === "name" || (path.startsWith("alerts.") && type !== "list");
    if (value !== null || nullable) setPath(out, path, value);
  }
  return sentOf(out, defaults, layers.defaults);
}

/** @returns {Record<string, unknown[]>} */
function grid() {
  const values = findAll("[data-grid]", HTMLInputElement, form).map(
    (i) => /** @type {const} */ ([given(i, "grid"), axisValues(i.value)]),
  );
  return Object.fromEntries(values.flatMap(([path, list]) => (list.length ? [[path, list]] : [])));
}

/** @returns {Record<string, any>} queue, priority, GPU and project, if they were changed */
function place() {
  const changed = places.filter((i) => i.value.trim() !== (i instanceof HTMLInputElement ? i.defaultValue : ""));
  return Object.fromEntries(changed.map((i) => [given(i, "place"), parseField(i.dataset.type, i.value) ?? ""]));
}

/** @returns {Record<string, any>} */
function body() {
  const sweep = grid();
  const search = searchOf(form);
  const name = find("[data-sweep-name]", HTMLInputElement, form).value.trim();
  const varied = { ...(Object.keys(sweep).length && { grid: sweep }), ...(search && { search }) };
  if (Object.keys(varied).length) return { ...(name && { name }), base: config(), ...varied, ...place() };
  const { project } = place();
  return { ...config(), ...(project !== undefined && { project }) };
}

/**
 * URL and body of the request. The form of a clone asks the server to clone the original run with every section
 * replaced, so that the new run records its origin.
 * @returns {[string, object]}
 */
function request() {
  const sent = body();
  if (sent.grid || sent.search) return [given(form, "sweepUrl"), sent];
  const queue = place();
  delete queue.project; // it belongs into the body
  const query = new URLSearchParams(queue).toString();
  if (form.dataset.clone === undefined) return [given(form, "submitUrl") + (query && `?${query}`), sent];
  const blank = { name: null, tags: [], model: {}, optimizer: {}, train: {}, telemetry: {}, alerts: {} };
  return [given(form, "submitUrl"), { set: { ...blank, ...config() }, ...place() }];
}

function refresh() {
  const task = required("task.name").value;
  for (const part of findAll("[data-task]", HTMLElement, form)) part.hidden = part.dataset.task !== task;
  layer.refresh();
  const sent = body();
  find("[data-preview]", HTMLElement, form).textContent = JSON.stringify(sent, null, 2);
  const combinations = Object.values(sent.grid ?? {}).reduce((n, values) => n * values.length, 1);
  const runs = sent.search ? sent.search.trials : combinations;
  submit.textContent = sent.grid || sent.search ? `Submit ${runs} runs` : "Submit run";
}

const layer = layerChoice(form, fieldOf, layers.choices, defaults.model.reparameterization);
offerAxes(
  form,
  inputs.map((element) => given(element, "path").replace(/^model\.layer\.name$/, "model.layer")),
);
form.addEventListener("input", ({ target }) => {
  layer.refresh();
  layer.chosen(target);
  refresh();
});
form.addEventListener("submit", async (event) => {
  if (event.submitter?.getAttribute("name") === "fill") return; // the server fills in the form
  event.preventDefault();
  clearErrors(form);
  submit.disabled = true;
  try {
    const answer = await send("POST", ...request());
    location.href = answer.url;
  } catch (error) {
    await showErrors(form, fieldOf, error, body());
    submit.disabled = false;
  }
});

// ?set=optimizer.lr=0.001 changes fields of a clone before it is shown
for (const setting of new URLSearchParams(location.search).getAll("set")) {
  const [path, value = ""] = setting.split(/=(.*)/s);
  const element = fieldOf(path);
  if (!element) continue;
  element.value = String(toNumber(value));
  layer.refresh();
  layer.chosen(element);
  const name = required("name");
  if (name.value)
    name.value += `, ${path
      .replace(/\.name$/, "")
      .split(".")
      .pop()} ${value}`;
}
refresh();
