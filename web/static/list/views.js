// Saves the list's filter, order and columns under a name; closes the pop-ups of the tools.

import { describe, send } from "../lib/api.js";
import { find, findAll, given } from "../lib/dom.js";
import { toast } from "../lib/toast.js";

const form = find("form[data-view]", HTMLFormElement);
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const query = new URLSearchParams(location.search);
  for (const name of ["cursor", "limit", "part", "remember", "compare"]) query.delete(name);
  const heads = findAll("th[data-column]:not([data-column=name])", HTMLElement);
  if (heads.length) query.set("columns", heads.map((head) => given(head, "column")).join(","));
  try {
    await send("POST", given(form, "view"), {
      name: find("[name=name]", HTMLInputElement, form).value.trim(),
      query: String(query),
    });
    location.reload();
  } catch (error) {
    toast(describe(error), "critical");
  }
});

const popups = findAll("details.popup", HTMLDetailsElement);
document.addEventListener("click", (event) => {
  for (const popup of popups) if (event.target instanceof Node && !popup.contains(event.target)) popup.open = false;
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const popup of popups) popup.open = false;
});
