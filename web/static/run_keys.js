// Keys of the run page; the page's list of them (shown by "?") is the same list.

import { find } from "./dom.js";

/**
 * @param {Record<string, (event: KeyboardEvent) => void>} actions by key as the browser names it
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
