// The page of all alerts: takes the server's list again every few seconds while somebody looks.

import { refreshTimes } from "./times.js";

const POLL_MS = 5000;

async function refresh() {
  if (document.hidden) return;
  const answer = await fetch(location.href);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  document.querySelector("[data-part=alerts]").replaceWith(document.adoptNode(page.querySelector("[data-part=alerts]")));
  refreshTimes();
}

setInterval(() => refresh().catch((error) => console.warn("the alerts could not be refreshed:", error.message)), POLL_MS);
