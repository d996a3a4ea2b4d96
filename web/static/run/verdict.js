// The verdict on the page: the eigenvalues that it names, and its sentences while the run trains.

import { findAll, given } from "../lib/dom.js";
import { sentences } from "../lib/format.js";

const SENTENCES = 2; // as in templates/_verdict.html

/** Shows the sentences of a newer verdict. @param {string} summary */
export function showSentences(summary) {
  for (const text of findAll("[data-verdict-sentences]", HTMLElement))
    text.textContent = "whole" in text.dataset ? summary : sentences(summary, SENTENCES);
}

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
