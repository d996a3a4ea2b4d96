// Starts the run page: requests its numbers first, then builds the display.

import { get } from "../lib/api.js";
import { find, given } from "../lib/dom.js";
import { RunControls } from "./controls.js";
import { RunDisplay } from "./display.js";
import { closeOnPhones } from "./folds.js";
import { RunHeader } from "./header.js";
import { RunModel } from "./model.js";
import { RunPage } from "./page.js";
import { RunState } from "./view_state.js";

closeOnPhones();
const root = find("[data-run-id]", HTMLElement);
/** @type {{layer?: number | null, eigenvalue?: number | null} | null} */
const divergence = JSON.parse(given(root, "divergence"));
const controls = new RunControls(find("form[data-controls]", HTMLFormElement), divergence?.layer);
const model = new RunModel(
  { series: given(root, "seriesUrl"), overview: given(root, "overviewUrl"), alerts: given(root, "alertsUrl") },
  controls.view.layer,
);
const state = new RunState(model, controls);
state.divergence = divergence;
const page = new RunPage({
  urls: { run: given(root, "runUrl"), verdict: given(root, "verdictUrl"), stream: given(root, "streamUrl") },
  model,
  status: given(root, "status"),
  wanted: () => state.wanted,
});
page.ask(); // the numbers load while the display is built
const header = new RunHeader(root);
model.figures = (await get(given(root, "figuresUrl"))).figures;
page.display = new RunDisplay(root, { page, state, controls, header });
await page.load();
