// Shows a chart in full screen.

/**
 * Adds a button beside the chart's title that shows the chart in full screen.
 * @param {HTMLElement} element
 * @param {string} title
 */
export function enlargeable(element, title) {
  const figure = element.closest("figure");
  const button = Object.assign(document.createElement("button"), {
    type: "button",
    className: "quiet",
    textContent: "⤢",
    title: "Full screen",
  });
  button.setAttribute("aria-label", `Full screen: ${title}`);
  button.addEventListener(
    "click",
    () => void (document.fullscreenElement ? document.exitFullscreen() : figure?.requestFullscreen()),
  );
  figure?.querySelector("figcaption")?.append(button);
}
