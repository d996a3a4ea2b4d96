// The page of all alerts: fetches the list every few seconds while the page is visible.

import { messageOf } from "../lib/api.js";
import { findAll, freshPage, replacePart } from "../lib/dom.js";
import { refreshTimes } from "../lib/times.js";

const POLL_MS = 5000;

async function refresh() {
  if (document.hidden) return;
  const page = await freshPage();
  if (!page) return;
  const groups = findAll("details[data-run]", HTMLDetailsElement);
  const open = new Map(groups.map((group) => [group.dataset.run, group.open]));
  replacePart(page, "[data-part=alerts]");
  for (const group of findAll("details[data-run]", HTMLDetailsElement))
    group.open = open.get(group.dataset.run) ?? group.open;
  refreshTimes();
}

setInterval(
  () => refresh().catch((error) => console.warn("the alerts could not be refreshed:", messageOf(error))),
  POLL_MS,
);
