// A loss curve with a height of a few pixels, on a logarithmic scale, with a cross where the loss becomes NaN or
// infinite.

/**
 * @param {{last: Float32Array}} series
 * @param {number} [width]
 * @param {number} [height]
 */
export function sparkPoints({ last }, width = 96, height = 26) {
  const y = Float64Array.from(last, (v) => (v > 0 && Number.isFinite(v) ? Math.log(v) : NaN));
  const finite = y.filter((v) => !Number.isNaN(v));
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  /** @param {number} v @param {number} i */
  const at = (v, i) => [
    2 + ((width - 4) * i) / Math.max(1, y.length - 1),
    3 + (height - 6) * (high > low ? (high - v) / (high - low) : 0.5),
  ];
  /** @type {string[]} */
  const points = [];
  y.forEach(
    (v, i) =>
      Number.isNaN(v) ||
      points.push(
        at(v, i)
          .map((p) => p.toFixed(1))
          .join(","),
      ),
  );
  const lost = last.findIndex((v) => !Number.isFinite(v));
  return { points: points.join(" "), lost: lost < 0 ? null : at(high, lost)[0] };
}

/**
 * @param {Element} svg
 * @param {{last: Float32Array}} series
 */
export function sparkline(svg, series) {
  const { points, lost } = sparkPoints(series);
  const parts = [make("polyline", { points })];
  if (lost !== null)
    parts.push(make("path", { d: `M${lost - 3},2l6,6m0,-6l-6,6`, stroke: "var(--danger)", "stroke-width": "2" }));
  svg.replaceChildren(...parts);
}

/**
 * @param {string} name
 * @param {Record<string, string>} attributes
 */
function make(name, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
}
