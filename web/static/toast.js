// Short notices in the corner, read out by screen readers; at most four at a time.

import { find } from "./dom.js";

const KEEP_MS = 8000;

/**
 * @param {string} message
 * @param {"info" | "warning" | "critical"} [severity]
 */
export function toast(message, severity = "info") {
  const region = find("[data-toasts]", HTMLElement);
  const note = document.createElement("div");
  note.className = `toast ${severity}`;
  note.setAttribute("role", severity === "critical" ? "alert" : "status");
  note.textContent = message;
  note.addEventListener("click", () => note.remove());
  region.append(note);
  while (region.children.length > 4) region.firstElementChild?.remove();
  setTimeout(() => note.remove(), KEEP_MS);
}
