// The eigenvalues that the verdict on the page names.

import { findAll, given } from "../lib/dom.js";

/** @returns {{culprit?: import("./reasons.js").Place, events: import("./reasons.js").Happening[]}} */
export function verdictNames() {
  const [verdict] = findAll("[data-verdict][data-eigenvalue]", HTMLElement);
  const events = findAll("[data-of-eigenvalue]", HTMLElement).map((one) => ({
    kind: given(one, "kind"),
    step: Number(given(one, "step")),
    layer: Number(given(one, "ofLayer")),
    eigenvalue: Number(given(one, "ofEigenvalue")),
  }));
  return verdict
    ? { culprit: { layer: Number(given(verdict, "layer")), eigenvalue: Number(given(verdict, "eigenvalue")) }, events }
    : { events };
}
