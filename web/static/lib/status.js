// A run's status as text, in the same form as the macro in _parts.html, for example "finished · 37 of 64 outside" if
// eigenvalues are outside the boundary, or "finished · evaluation NaN".

import { number } from "./format.js";

const FINAL = ["finished", "failed", "diverged", "cancelled"];

/** @typedef {Pick<RunAnswer, "status" | "unstable"> & Partial<Pick<RunAnswer, "result">>} Shown */

/** @param {string} status */
export const isFinal = (status) => FINAL.includes(status);

/** Whether the last evaluation of the run is not finite. @param {Shown} run */
const isLost = ({ result }) => result?.eval_loss !== undefined && result.eval_loss !== null && !Number.isFinite(Number(result.eval_loss)); // prettier-ignore

/**
 * @param {Shown} run
 * @param {boolean} [worse] whether the verdict says that the loss ended far above its start
 */
export function statusText(run, worse = false) {
  const { status, unstable, result } = run;
  if (status === "diverged") return status;
  const parts = [
    status,
    isLost(run) && `evaluation ${number(result?.eval_loss)}`,
    worse && "loss above its start",
    unstable && `${unstable.eigenvalues} of ${unstable.of} outside`,
  ];
  return parts.filter(Boolean).join(" · ");
}

/**
 * @param {HTMLElement} badge the element with data-status
 * @param {Shown} run
 */
export function showStatus(badge, run) {
  badge.dataset.status = run.status;
  badge.toggleAttribute("data-unstable", Boolean(run.unstable));
  badge.toggleAttribute("data-lost", isLost(run));
  const text = badge.querySelector("[data-live=status]") ?? badge;
  const said = statusText(run, "worse" in badge.dataset);
  if (text.textContent !== said) text.textContent = said;
}
