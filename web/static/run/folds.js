// Closes the parts of the run page that would make it too long on a phone. A reader opens them, and links and alerts
// that lead into such a part open it too.

const PHONE = "(width <= 640px)";

/** @param {ParentNode} [within] */
export function closeOnPhones(within = document) {
  if (!matchMedia(PHONE).matches) return;
  for (const part of within.querySelectorAll("details[data-closed-on-phones]")) part.removeAttribute("open");
}

/**
 * Opens all parts around this element.
 * @param {Element} element
 */
export function reveal(element) {
  for (let at = element.closest("details"); at; at = at.parentElement?.closest("details") ?? null) at.open = true;
}

/**
 * Opens and closes the parts in `fresh` as they are in `old`, which it replaces.
 * @param {Element} old
 * @param {Element} fresh
 */
export function keepFolds(old, fresh) {
  const [before, after] = [old, fresh].map((part) => [
    ...(part instanceof HTMLDetailsElement ? [part] : []),
    ...part.querySelectorAll("details"),
  ]);
  if (before.length === after.length) after.forEach((part, i) => (part.open = before[i].open));
  else closeOnPhones(fresh);
}
