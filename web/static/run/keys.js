// Keyboard shortcuts of the run page. The key "?" opens a list of these shortcuts on the page.

import { find } from "../lib/dom.js";

/**
 * @param {Record<string, (event: KeyboardEvent) => void>} actions the action of each key, by the browser's name for the key
 */
export function listen(actions) {
  const help = find("dialog[data-keys]", HTMLDialogElement);
  find("[data-open-keys]", HTMLButtonElement).addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help.open || typing(event.target)) return;
    const act = event.key === "?" ? () => help.showModal() : actions[event.key];
    if (!act) return;
    event.preventDefault();
    act(event);
  });
}

/** @param {EventTarget | null} target */
function typing(target) {
  if (!(target instanceof HTMLElement)) return false;
  return target.isContentEditable || ["INPUT", "SELECT", "TEXTAREA"].includes(target.tagName);
}
