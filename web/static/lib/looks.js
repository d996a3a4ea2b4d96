// Colours and dashes of runs and groups in charts of several runs; web/looks.py does the same in Python (a test
// compares the two). If the layers differ, the colour shows the layer and the dash the map; otherwise the colour shows the
// map.

import { DASHES } from "./pick.js";

/**
 * @typedef {{color: string, dash: string}} Look color: a name of the palette
 * @typedef {{layer: string, map: string}} Kind
 */

/**
 * @param {Kind[]} runs
 * @param {Colors} palette the page's CSS variables: colours, and each map's dash
 * @returns {Look[]}
 */
export function runLooks(runs, palette) {
  const layers = [...new Set(runs.map((run) => run.layer))];
  if (layers.length > 1) {
    const others = layers.filter((layer) => !(`layer-${layer}` in palette));
    const colorOf = (/** @type {string} */ layer) =>
      others.includes(layer) ? `line-${others.indexOf(layer) % 8}` : `layer-${layer}`;
    return runs.map(({ layer, map }) => ({ color: colorOf(layer), dash: palette[`dash-${map}`] ?? "solid" }));
  }
  /** @type {Record<string, number>} */
  const earlier = {};
  return runs.map(({ map }) => {
    const n = (earlier[map] = (earlier[map] ?? -1) + 1);
    return { color: `map-${map}`, dash: DASHES[n % DASHES.length] };
  });
}

/**
 * If the layers differ between groups but not within a group, each group looks like its runs, unless two groups would then
 * look the same. A group with several maps has a solid line. Otherwise, a group that is named after its map has the map's
 * colour. All other groups get the palette's colours for lines; from the ninth group on, the lines are also dashed.
 * @param {[string, (Kind & Look)[]][]} groups name and runs of each group
 * @returns {Look[]}
 */
export function groupLooks(groups) {
  const several = new Set(groups.flatMap(([, runs]) => runs.map((run) => run.layer))).size > 1;
  const common = several ? groups.map(([, runs]) => commonLook(runs)) : [];
  if (
    common.length &&
    common.every((look) => look) &&
    new Set(common.map((look) => `${look?.color} ${look?.dash}`)).size === groups.length
  ) {
    return /** @type {Look[]} */ (common);
  }
  return groups.map(([name, runs], i) => {
    const ofMap = !several && runs[0].map === name;
    return { color: ofMap ? runs[0].color : `line-${i % 8}`, dash: ofMap ? "solid" : DASHES[Math.floor(i / 8) % 6] };
  });
}

/**
 * @param {Look[]} runs
 * @returns {Look | null} null if their colours differ
 */
function commonLook(runs) {
  const [colors, dashes] = [new Set(runs.map((run) => run.color)), new Set(runs.map((run) => run.dash))];
  return colors.size === 1 ? { color: runs[0].color, dash: dashes.size === 1 ? runs[0].dash : "solid" } : null;
}
