// The alert list of a run page: a new alert appears on top, and in the corner when it is fresh.

import { ago } from "./format.js";
import { toast } from "./toast.js";

export function showAlert(alert) {
  const list = document.querySelector("[data-alerts]");
  if (!list || list.querySelector(`[data-alert-id="${Number(alert.id)}"]`)) return;
  const item = document.querySelector("template[data-alert-template]").content.firstElementChild.cloneNode(true);
  item.dataset.alertId = alert.id;
  item.dataset.severity = alert.severity;
  item.querySelector("[data-field=message]").textContent = alert.message;
  item.querySelector("[data-field=severity]").textContent = alert.severity;
  item.querySelector("[data-field=where]").textContent = place(alert);
  const time = item.querySelector("time");
  time.dataset.epoch = alert.created_at;
  time.textContent = ago(alert.created_at);
  list.prepend(item);
  while (list.children.length > 200) list.lastElementChild.remove();
  const count = document.querySelectorAll("[data-live=alerts]");
  count.forEach((element) => (element.textContent = String(Number(element.textContent) + 1)));
  document.querySelector("[data-no-alerts]")?.remove();
}

export function announce(alert) {
  toast(`step ${alert.step}: ${alert.message}`, alert.severity);
}

export function place({ step, layer, eigenvalue }) {
  const parts = [`step ${step}`];
  if (layer !== null && layer !== undefined) parts.push(`layer ${layer}`);
  if (eigenvalue !== null && eigenvalue !== undefined) parts.push(`eigenvalue ${eigenvalue}`);
  return parts.join(", ");
}
