// Shows a secret that the server sends only once, with a button that copies it.

import { toast } from "./toast.js";

/**
 * @param {HTMLElement} output
 * @param {string} label
 * @param {string} secret
 */
export function showSecret(output, label, secret) {
  const code = document.createElement("code");
  code.textContent = secret;
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = "Copy";
  copy.addEventListener("click", () => navigator.clipboard.writeText(secret).then(() => toast("Copied.")));
  const done = document.createElement("button");
  done.type = "button";
  done.textContent = "Done";
  done.addEventListener("click", () => location.reload());
  const row = document.createElement("span");
  row.className = "row";
  row.append(code, copy, done);
  output.replaceChildren(label, row);
  output.hidden = false;
}
