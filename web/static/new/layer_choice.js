// The choice of a new run's layer: shows the layer's options and offers the maps that the layer can have.

import { findAll, given } from "../lib/dom.js";

/**
 * @typedef {HTMLInputElement | HTMLSelectElement} Field
 * @typedef {{times: string[], b: number | null}} PossibleMap b: constant of `best` that reaches the layer's initial eigenvalues, if the default does not
 * @typedef {{when: Record<string, unknown>, native: string, maps: Record<string, PossibleMap>}} MapChoice
 */

const NATIVE = "native";
const REP = "model.reparameterization";

/** @param {Field} element */
const valueOf = (element) =>
  element instanceof HTMLInputElement && element.type === "checkbox" ? String(element.checked) : element.value;

/** @param {Field} element */
const boxOf = (element) => /** @type {HTMLElement} */ (element.closest(".field"));

/**
 * @param {HTMLFormElement} form
 * @param {(path: string) => Field | undefined} fieldOf returns the field that currently sets a path
 * @param {Record<string, MapChoice[]>} choices possible maps by layer
 * @param {{name: string, b: number}} usual the default reparameterization of stable_ssm
 */
export function layerChoice(form, fieldOf, choices, usual) {
  const [kind, listed, map, time, a, b] = [
    "model.layer.name",
    "model.layers",
    `${REP}.name`,
    `${REP}.time`,
    `${REP}.a`,
    `${REP}.b`,
  ].map((path) => /** @type {Field} */ (fieldOf(path)));
  const mixed = () => listed.value.trim() !== "";
  const usualMap = () => (kind.value === "stable_ssm" && !mixed() ? usual.name : NATIVE);
  let before = usualMap();
  for (const option of /** @type {HTMLSelectElement} */ (map).options) option.value = option.text; // the text of the option is extended below

  /** The maps that the layer can have with these options; null for mixed layers, which the server checks. */
  function choice() {
    if (mixed()) return null;
    const holds = (/** @type {[string, unknown]} */ [option, value]) =>
      valueOf(/** @type {Field} */ (fieldOf(`model.layer.${option}`))) === String(value);
    return choices[kind.value]?.find(({ when }) => Object.entries(when).every(holds)) ?? null;
  }

  function showOptions() {
    kind.disabled = mixed();
    for (const part of findAll("[data-of]", HTMLElement, form)) {
      const path = given(part, "of");
      const is = given(part, "is");
      const decides = fieldOf(path);
      if (path === "model.layer.name" && mixed()) part.hidden = is !== "stable_ssm" || !listed.value.includes(is);
      else if (decides) part.hidden = decides.value !== is;
    }
  }

  function offerMaps() {
    const now = choice();
    if (before !== usualMap() && map.value === before) map.value = usualMap();
    before = usualMap();
    for (const option of /** @type {HTMLSelectElement} */ (map).options) {
      const own = option.value === NATIVE;
      option.hidden = option.disabled = now !== null && !own && !(option.value in now.maps);
      if (own) option.textContent = now?.native ? `native: ${now.native}` : NATIVE;
    }
    if (/** @type {HTMLSelectElement} */ (map).selectedOptions[0]?.disabled) map.value = usualMap();
    const times = now?.maps[map.value === NATIVE ? now.native : map.value]?.times ?? [];
    for (const option of /** @type {HTMLSelectElement} */ (time).options)
      option.disabled = !times.includes(option.value);
    boxOf(time).hidden = kind.value !== "stable_ssm" || mixed();
    if (times.length && !times.includes(time.value)) time.value = times[0];
    for (const constant of [a, b]) boxOf(constant).hidden = (map.value === NATIVE ? now?.native : map.value) !== "best";
  }

  return {
    refresh() {
      showOptions();
      offerMaps();
    },
    /**
     * If the map or the layer has changed, sets b so that `best` reaches the layer's initial eigenvalues.
     * @param {EventTarget | null} changed
     */
    chosen(changed) {
      if (changed === map || changed === kind) b.value = String(choice()?.maps[map.value]?.b ?? usual.b);
    },
    /**
     * Whether the field has no effect. Only stable_ssm supports both times, and a list of layers replaces the single layer.
     * @param {Field} element
     */
    leavesOut: (element) => element === time && boxOf(time).hidden,
  };
}
