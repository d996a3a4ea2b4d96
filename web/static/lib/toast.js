// Short notices in the corner of the page, which screen readers read out; at most four at a time. A notice may have a button.

import { find } from "./dom.js";

const KEEP_MS = 8000;
const KEEP_BUTTON_MS = 30_000;

/**
 * @param {string} message
 * @param {"info" | "warning" | "critical"} [severity]
 * @param {{label: string, act: () => void}} [button]
 */
export function toast(message, severity = "info", button) {
  const region = find("[data-toasts]", HTMLElement);
  const note = document.createElement("div");
  note.className = `toast ${severity}`;
  note.setAttribute("role", severity === "critical" ? "alert" : "status");
  note.textContent = message;
  note.addEventListener("click", () => note.remove());
  if (button) {
    const offered = document.createElement("button");
    offered.textContent = button.label;
    offered.addEventListener("click", button.act);
    note.append(offered);
  }
  region.append(note);
  while (region.children.length > 4) region.firstElementChild?.remove();
  setTimeout(() => note.remove(), button ? KEEP_BUTTON_MS : KEEP_MS);
}
