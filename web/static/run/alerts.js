// The alert list of a run page. A new alert appears at the top of the list and as a notice in the corner.

import { find } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { toast } from "../lib/toast.js";

/** @param {AlertAnswer} alert */
export function showAlert(alert) {
  const list = document.querySelector("[data-alerts]");
  if (!list || list.querySelector(`[data-alert-id="${Number(alert.id)}"]`)) return;
  const template = find("template[data-alert-template]", HTMLTemplateElement).content;
  const copy = /** @type {DocumentFragment} */ (template.cloneNode(true));
  const item = find("li", HTMLElement, copy);
  item.dataset.alertId = String(alert.id);
  item.dataset.severity = alert.severity;
  find("[data-field=message]", HTMLElement, item).textContent = alert.message;
  find("[data-field=severity]", HTMLElement, item).textContent = alert.severity;
  find("[data-field=where]", HTMLElement, item).textContent = place(alert);
  const time = find("time", HTMLElement, item);
  time.dataset.epoch = String(alert.created_at);
  time.textContent = ago(alert.created_at);
  list.prepend(item);
  while (list.children.length > 200) list.lastElementChild?.remove();
  const totals = document.querySelectorAll("[data-live=alerts]");
  totals.forEach((element) => (element.textContent = String(Number(element.textContent) + 1)));
  document.querySelector("[data-no-alerts]")?.remove();
}

/** @param {AlertAnswer} alert */
export function announce(alert) {
  toast(`step ${alert.step}: ${alert.message}`, alert.severity);
}

/** @param {AlertAnswer} alert */
export function place({ step, layer, eigenvalue }) {
  const parts = [`step ${step}`];
  if (layer !== null && layer !== undefined) parts.push(`layer ${layer}`);
  if (eigenvalue !== null && eigenvalue !== undefined) parts.push(`eigenvalue ${eigenvalue}`);
  return parts.join(", ");
}
