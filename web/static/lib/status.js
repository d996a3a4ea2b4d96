// A run's status as text, in the same form as the macro in _parts.html: "finished · 37 of 64 outside" if eigenvalues
// are outside the boundary.

const FINAL = ["finished", "failed", "diverged", "cancelled"];

/** @param {string} status */
export const isFinal = (status) => FINAL.includes(status);

/** @param {Pick<RunAnswer, "status" | "unstable" | "lost">} run */
export function statusText({ status, unstable, lost }) {
  if (lost && status === "finished") return `${status} · loss not finite`;
  return unstable && status !== "diverged" ? `${status} · ${unstable.eigenvalues} of ${unstable.of} outside` : status;
}

/**
 * @param {HTMLElement} badge the element with data-status
 * @param {Pick<RunAnswer, "status" | "unstable" | "lost">} run
 */
export function showStatus(badge, run) {
  badge.dataset.status = run.status;
  badge.toggleAttribute("data-unstable", Boolean(run.unstable));
  badge.toggleAttribute("data-lost", Boolean(run.lost) && run.status === "finished");
  const text = badge.querySelector("[data-live=status]") ?? badge;
  if (text.textContent !== statusText(run)) text.textContent = statusText(run);
}
