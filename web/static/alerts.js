// The page of all alerts: takes the server's list again every few seconds while the page can be seen.

import { messageOf } from "./api.js";
import { freshPage, replacePart } from "./dom.js";
import { refreshTimes } from "./times.js";

const POLL_MS = 5000;

async function refresh() {
  if (document.hidden) return;
  const page = await freshPage();
  if (!page) return;
  replacePart(page, "[data-part=alerts]");
  refreshTimes();
}

setInterval(() => refresh().catch((error) => console.warn("the alerts could not be refreshed:", messageOf(error))), POLL_MS);
