// The horizontal axis that was asked for, from what the run has recorded.

/** @import { Axis } from "./clock.js" */
/** @import { RunModel } from "./run_model.js" */

import { get } from "./api.js";
import { STEPS, time, tokens } from "./clock.js";
import { buckets } from "./typed.js";

/**
 * Tokens of a step are its rate times its seconds; time is the sum of the seconds.
 * @param {RunModel} model
 * @param {string} wanted step, tokens or time
 * @returns {Promise<Axis | null>} null when the run has not recorded what it needs
 */
export async function axisOf(model, wanted) {
  if (wanted === "step") return STEPS;
  const [rate, seconds] = await Promise.all(["train/tokens_per_second", "train/step_seconds"].map((name) => recorded(model, name)));
  if (wanted === "time") return seconds?.step.length ? time(seconds) : null;
  const perStep = Math.round((rate?.last.at(-1) ?? NaN) * (seconds?.last.at(-1) ?? NaN));
  return perStep > 0 ? tokens(perStep) : null;
}

/**
 * @param {RunModel} model
 * @param {string} name
 */
async function recorded(model, name) {
  const answer = await get(`${model.urls.series}/${name}?format=typed&max_points=2000`).catch(() => null);
  return answer ? buckets(answer) : null;
}
