// The chosen horizontal axis, computed from recorded series.

/** @import { Axis } from "./clock.js" */
/** @import { RunModel } from "./model.js" */

import { get } from "../lib/api.js";
import { STEPS, time, tokens } from "./clock.js";
import { buckets } from "../lib/typed.js";

/**
 * The number of tokens in a step is the step's tokens per second times its duration; the training time is the sum of all
 * step durations.
 * @param {RunModel} model
 * @param {string} wanted step, tokens or time
 * @returns {Promise<Axis | null>} null if the run has not recorded the series that the axis needs
 */
export async function axisOf(model, wanted) {
  if (wanted === "step") return STEPS;
  const [rate, seconds] = await Promise.all(
    ["train/tokens_per_second", "train/step_seconds"].map((name) => recorded(model, name)),
  );
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
