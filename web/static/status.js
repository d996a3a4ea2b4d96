// A run's status as the macro in _parts.html writes it: "finished · 37 of 64 outside" where eigenvalues are outside the boundary.

/** @param {Pick<RunAnswer, "status" | "unstable">} run */
export function statusText({ status, unstable }) {
  return unstable && status !== "diverged" ? `${status} · ${unstable.eigenvalues} of ${unstable.of} outside` : status;
}

/**
 * @param {HTMLElement} badge the element that carries data-status
 * @param {Pick<RunAnswer, "status" | "unstable">} run
 */
export function showStatus(badge, run) {
  badge.dataset.status = run.status;
  badge.toggleAttribute("data-unstable", Boolean(run.unstable));
  const text = badge.querySelector("[data-live=status]") ?? badge;
  if (text.textContent !== statusText(run)) text.textContent = statusText(run);
}
