// The view of a run page, which is read from and written to the page's address: steps, layer, eigenvalues, scale,
// smoothing, axis, order of rows.

const CHOICES = {
  scale: ["", "log", "linear"],
  axis: ["step", "tokens", "time"],
  rows: ["index", "end", "start"],
  top: ["8", "4", "16", "24", "0"],
};

const OWN_SCALE = /^[a-z_]+:(log|linear)$/;

/**
 * The scale of a chart: its own scale, otherwise the page's scale, otherwise "" (the chart's default).
 * @param {Pick<View, "scale" | "scales">} view
 * @param {string} chart
 */
export function scaleOf({ scale, scales }, chart) {
  return (
    scales
      .split(",")
      .find((one) => one.startsWith(`${chart}:`))
      ?.slice(chart.length + 1) ?? scale
  );
}

/**
 * The scales of single charts, with the scale of this chart added or replaced.
 * @param {string} scales
 * @param {string} chart
 * @param {string} scale
 */
export function withScale(scales, chart, scale) {
  return [...scales.split(",").filter((one) => one && !one.startsWith(`${chart}:`)), `${chart}:${scale}`].join(",");
}

/**
 * The view of an address; the defaults replace missing and invalid values.
 * @param {string} search query of the address
 * @param {string[]} records ids of the records that can be shown
 * @param {string} [first] the layer that is shown unless the address names another layer
 * @returns {View}
 */
export function readView(search, records, first = "0") {
  const given = new URLSearchParams(search);
  /** @param {keyof typeof CHOICES} name */
  const choice = (name) => CHOICES[name].find((one) => one === given.get(name)) ?? CHOICES[name][0];
  const [layer, smooth] = [given.get("layer") ?? first, Number(given.get("smooth"))];
  const [from, to] = [stepOf(given.get("from")), stepOf(given.get("to"))];
  const range = from !== null && to !== null && from < to;
  return {
    layer: records.includes(layer) ? layer : first,
    from: range ? from : null,
    to: range ? to : null,
    eigenvalues: given.get("eigenvalues") ?? "",
    top: choice("top"),
    scale: choice("scale"),
    scales: (given.get("scales") ?? "")
      .split(",")
      .filter((one) => OWN_SCALE.test(one))
      .join(","),
    axis: choice("axis"),
    rows: choice("rows"),
    smooth: smooth > 0 && smooth < 1 ? smooth : 0,
  };
}

/**
 * The URL query for a view: its values that differ from the defaults, and the unrelated parameters of the current query.
 * @param {View} view
 * @param {string} [search] the current query
 * @param {string} [first] the layer that is shown unless the address names another layer
 */
export function writeView(view, search = "", first = "0") {
  const out = new URLSearchParams(search);
  const plain = { ...readView("", []), layer: first };
  for (const name of /** @type {(keyof View)[]} */ (Object.keys(plain))) {
    const value = view[name];
    if (value === plain[name] || value === null) out.delete(name);
    else out.set(name, String(typeof value === "number" ? Number(value.toFixed(3)) : value));
  }
  return out.size ? `?${out}` : "";
}

/** @param {string | null} text */
function stepOf(text) {
  const step = text === null || text === "" ? NaN : Number(text);
  return Number.isFinite(step) && step >= 0 ? step : null;
}
