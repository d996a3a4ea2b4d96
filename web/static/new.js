// The submission form: possible choices only, a preview of what is sent, the server's refusals at their fields.

import { send } from "./api.js";
import { differences, getPath, parseField, parseGrid, setPath, toNumber } from "./config_form.js";

const form = document.querySelector("[data-new]");
const defaults = JSON.parse(form.dataset.defaults);
const maps = JSON.parse(form.dataset.maps);
const inputs = [...form.querySelectorAll("[data-path]")];
const places = [...form.querySelectorAll("[data-place]")];
const input = (path) =>
  inputs.find((i) => i.dataset.path === path && !i.closest("[data-task][hidden]")) ?? places.find((i) => i.dataset.place === path);

function config() {
  const out = {};
  for (const element of inputs) {
    if (element.closest("[data-task][hidden]")) continue;
    const { path, type } = element.dataset;
    const value = parseField(path === "tags" ? "tags" : type, element.value, element.checked);
    // an empty field means null where that is allowed, else the default
    const nullable = getPath(defaults, path) === null || path === "name" || path.startsWith("alerts.");
    if (value !== null || nullable) setPath(out, path, value);
  }
  return differences(out, defaults);
}

function grid() {
  const fields = [...form.querySelectorAll("[data-grid]")].map((i) => [i.dataset.grid, parseGrid(i.value)]);
  return Object.fromEntries(fields.filter(([, values]) => values));
}

function place() {
  const changed = places.filter((i) => i.value.trim() !== i.defaultValue);
  return Object.fromEntries(changed.map((i) => [i.dataset.place, parseField(i.dataset.type, i.value) ?? ""]));
}

function body() {
  const sweep = grid();
  return Object.keys(sweep).length ? { base: config(), grid: sweep, ...place() } : config();
}

// A clone is the other run with every section replaced, so that the new run knows where it came from.
function request() {
  const sent = body();
  if (sent.grid) return [form.dataset.sweepUrl, sent];
  const query = new URLSearchParams(place()).toString();
  if (form.dataset.clone === undefined) return [form.dataset.submitUrl + (query && `?${query}`), sent];
  const blank = { name: null, tags: [], model: {}, optimizer: {}, train: {}, telemetry: {}, alerts: {} };
  return [form.dataset.submitUrl, { set: { ...blank, ...sent }, ...place() }];
}

function refresh() {
  const task = input("task.name").value;
  for (const part of form.querySelectorAll("[data-task]")) {
    part.hidden = part.dataset.task !== task;
  }
  const name = input("model.reparameterization.name").value;
  const time = input("model.reparameterization.time");
  for (const option of time.options) option.disabled = !maps[name].includes(option.value);
  if (time.selectedOptions[0].disabled) time.value = maps[name][0];
  for (const part of ["a", "b"]) input(`model.reparameterization.${part}`).closest(".field").hidden = name !== "best";
  const sent = body();
  form.querySelector("[data-preview]").textContent = JSON.stringify(sent, null, 2);
  form.querySelector("[type=submit]").textContent = sent.grid
    ? `Submit ${Object.values(sent.grid).reduce((n, values) => n * values.length, 1)} runs`
    : "Submit run";
}

function clearErrors() {
  for (const note of form.querySelectorAll("[data-error-for], [data-form-error]")) note.hidden = true;
  for (const element of form.querySelectorAll("[aria-invalid]")) element.removeAttribute("aria-invalid");
}

function showError(error) {
  const text = error.allowed && !error.message.includes(error.allowed) ? `${error.message} (allowed: ${error.allowed})` : error.message;
  const target = error.field && input(error.field);
  const note = target ? target.closest(".field").querySelector("[data-error-for]") : form.querySelector("[data-form-error]");
  note.textContent = text;
  note.hidden = false;
  if (!target) return;
  target.setAttribute("aria-invalid", "true");
  if (target.closest("details")) target.closest("details").open = true;
  target.focus();
  form.querySelector("[data-form-error]").textContent = `${error.field} was refused.`;
  form.querySelector("[data-form-error]").hidden = false;
}

form.addEventListener("input", refresh);
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  clearErrors();
  const button = form.querySelector("[type=submit]");
  button.disabled = true;
  try {
    const answer = await send("POST", ...request());
    location.href = answer.url;
  } catch (error) {
    showError(error);
    button.disabled = false;
  }
});

// ?set=optimizer.lr=0.001 changes fields of a clone before it is shown
for (const setting of new URLSearchParams(location.search).getAll("set")) {
  const [path, value] = setting.split(/=(.*)/s);
  const element = input(path);
  if (!element) continue;
  element.value = String(toNumber(value));
  if (input("name").value) input("name").value += `, ${path.replace(/\.name$/, "").split(".").pop()} ${value}`;
}
refresh();
