// Keeps the text of <time data-epoch> elements current: how long ago that time was.

import { findAll } from "./dom.js";
import { ago } from "./format.js";

export function refreshTimes() {
  for (const element of findAll("time[data-epoch]", HTMLTimeElement)) {
    const epoch = Number(element.dataset.epoch);
    element.textContent = ago(epoch);
    element.title = new Date(epoch * 1000).toLocaleString();
  }
}

refreshTimes();
setInterval(() => document.hidden || refreshTimes(), 10_000);
