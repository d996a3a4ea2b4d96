// How runs look in charts that show several: colour by map, dash by place among the runs of that map.

import { DASHES } from "./pick.js";

/**
 * The map of the run's first layer: what its colour stands for; "" while none is known.
 * @param {RunAnswer} run
 */
export const mapOf = (run) => run.forms[0]?.map ?? "";

/** @param {RunAnswer[]} runs */
export function runItems(runs) {
  /** @type {Record<string, number>} */
  const seen = {};
  return runs.map((run) => {
    const map = mapOf(run);
    const place = (seen[map] = (seen[map] ?? -1) + 1);
    const label = run.name ?? `run ${run.id}`;
    return { key: String(run.id), label, color: `map-${map}`, dash: DASHES[place % DASHES.length] };
  });
}

/** @param {RunAnswer} run */
export function finalLoss(run) {
  const loss = run.result?.train_loss;
  return loss === undefined || loss === null ? null : Number(loss);
}
