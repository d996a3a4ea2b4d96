// How runs look in charts that show several, and groups of them: web/looks.py is the same in Python (a test compares).
// Where runs have different layers, the colour is the layer's and the dash the map's; else the colour is the map's.

import { DASHES } from "./pick.js";

/**
 * @typedef {{color: string, dash: string}} Look color: a name of the palette
 * @typedef {{layer: string, map: string}} Kind
 */

/** @type {Record<string, string>} as MAP_DASHES of web/palette.py */
export const MAP_DASHES = {
  direct: "dot", relu: "dash", clip: "dashdot", exp: "longdash", softplus: "longdashdot", tanh: "dash", best: "solid", heavytail: "dashdot", sigmoid: "dot",
};

/**
 * @param {Kind[]} runs
 * @param {(color: string) => boolean} known whether the palette has a colour of this name
 * @returns {Look[]}
 */
export function runLooks(runs, known) {
  const layers = [...new Set(runs.map((run) => run.layer))];
  if (layers.length > 1) {
    const others = layers.filter((layer) => !known(`layer-${layer}`));
    const colorOf = (/** @type {string} */ layer) => (others.includes(layer) ? `line-${others.indexOf(layer) % 8}` : `layer-${layer}`);
    return runs.map(({ layer, map }) => ({ color: colorOf(layer), dash: MAP_DASHES[map] ?? "solid" }));
  }
  /** @type {Record<string, number>} */
  const seen = {};
  return runs.map(({ map }) => {
    const place = (seen[map] = (seen[map] ?? -1) + 1);
    return { color: `map-${map}`, dash: DASHES[place % DASHES.length] };
  });
}

/**
 * A group of one layer looks as its runs do, solid if these have several maps, where no other group would look the same. A group of
 * one layer's runs that is named as a map has the map's colour; all others have the lines' colours, and beyond eight dashes.
 * @param {[string, (Kind & Look)[]][]} groups by name
 * @returns {Look[]}
 */
export function groupLooks(groups) {
  const several = new Set(groups.flatMap(([, runs]) => runs.map((run) => run.layer))).size > 1;
  const common = several ? groups.map(([, runs]) => commonLook(runs)) : [];
  if (common.length && common.every((look) => look) && new Set(common.map((look) => `${look?.color} ${look?.dash}`)).size === groups.length) {
    return /** @type {Look[]} */ (common);
  }
  return groups.map(([name, runs], i) => {
    const ofMap = !several && runs[0].map === name;
    return { color: ofMap ? runs[0].color : `line-${i % 8}`, dash: ofMap ? "solid" : DASHES[Math.floor(i / 8) % 6] };
  });
}

/**
 * @param {Look[]} runs
 * @returns {Look | null} null where they have different colours
 */
function commonLook(runs) {
  const [colors, dashes] = [new Set(runs.map((run) => run.color)), new Set(runs.map((run) => run.dash))];
  return colors.size === 1 ? { color: runs[0].color, dash: dashes.size === 1 ? runs[0].dash : "solid" } : null;
}
