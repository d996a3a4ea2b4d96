// Connects the fields, buttons and keys of a run page to what they change.

/** @import { RunCharts } from "./charts.js" */
/** @import { RunControls } from "./controls.js" */

import { Cursor } from "./cursor.js";
import { findAll } from "../lib/dom.js";
import { axisOf } from "./axis.js";
import { listen } from "./keys.js";
import { AlertLinks } from "./links.js";
import { REPLACED } from "./parts.js";
import { scaleButtons } from "./scales.js";
import { toast } from "../lib/toast.js";

const LAST_STEPS = 200;

/**
 * @param {RunCharts} charts
 * @param {RunControls} controls
 * @param {() => Promise<void>} reload reads the data of the newly chosen layer
 * @returns {{cursor: Cursor, setAxis: () => Promise<void>}}
 */
export function wireControls(charts, controls, reload) {
  const { state } = charts;
  const { view } = state;
  const cursor = new Cursor(charts);
  let reading = Promise.resolve();

  /** @param {string | undefined} id of a record */
  const toLayer = async (id) => {
    if (id === undefined || id === view.layer || !controls.records.some((one) => one.id === id)) return;
    controls.set("layer", id);
    await reading;
  };
  /** @param {1 | -1} by */
  const beside = (by) =>
    void toLayer(controls.records[controls.records.findIndex(({ id }) => id === view.layer) + by]?.id);
  const links = new AlertLinks(charts, cursor, toLayer);

  const setAxis = async () => {
    const axis = await axisOf(state.model, view.axis);
    if (axis) state.axis = axis;
    else toast(`This run has not recorded the series that an axis of ${view.axis} needs.`, "warning");
  };
  const wholeRun = () => void charts.zoom(null, null);
  // the last steps of the run at full resolution
  const lastSteps = async () => {
    await toLayer(String(state.divergence?.layer ?? view.layer));
    await charts.zoom(Math.max(0, state.newest - LAST_STEPS), state.newest + 1);
  };

  const showScales = scaleButtons(charts, controls);
  charts.onView = () => controls.show();
  addEventListener(REPLACED, () => charts.arrange());
  controls.onChange = (name) => {
    showScales();
    if (name === "layer") {
      state.model.layer = view.layer;
      charts.arrange();
      reading = reload();
    } else if (name === "axis") void setAxis().then(() => charts.refresh());
    else charts.refresh();
  };
  for (const button of findAll("[data-zoom-out]", HTMLElement)) button.addEventListener("click", wholeRun);
  for (const button of findAll("[data-last-steps]", HTMLElement))
    button.addEventListener("click", () => void lastSteps());
  listen({
    ArrowLeft: ({ shiftKey }) => cursor.move(shiftKey ? -10 : -1),
    ArrowRight: ({ shiftKey }) => cursor.move(shiftKey ? 10 : 1),
    Escape: () => (cursor.step === null ? wholeRun() : cursor.set(null)),
    z: wholeRun,
    e: () => void lastSteps(),
    g: () => controls.set("scale", { "": "log", log: "linear" }[view.scale] ?? ""),
    s: () => controls.set("smooth", view.smooth ? 0 : 0.9),
    "]": () => beside(1),
    "[": () => beside(-1),
    n: () => links.next(1),
    p: () => links.next(-1),
  });
  // a layer that was chosen before the controls were wired
  if (state.model.layer !== view.layer) controls.onChange("layer");
  return { cursor, setAxis };
}
