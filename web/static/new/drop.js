// A JSON file that is dropped on the form for a new run fills in the form.

import { messageOf } from "../lib/api.js";
import { find } from "../lib/dom.js";
import { toast } from "../lib/toast.js";

const MAX_BYTES = 1 << 19;
const form = find("form[data-new]", HTMLFormElement);
const box = find("#json", HTMLTextAreaElement, form);

form.addEventListener("dragover", (event) => {
  if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
});
form.addEventListener("drop", async (event) => {
  const file = event.dataTransfer?.files[0];
  if (!file) return;
  event.preventDefault();
  try {
    if (file.size > MAX_BYTES) throw new Error(`the file has ${file.size} bytes; at most ${MAX_BYTES} are allowed`);
    box.value = await file.text();
    form.requestSubmit(find("button[name=fill]", HTMLButtonElement, form));
  } catch (error) {
    toast(`The file could not be read: ${messageOf(error)}`, "critical");
  }
});
