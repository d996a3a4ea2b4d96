// Turns curves of many runs into lines and bands of groups, and a view into an address. Pure functions.

const CROWDED = 60; // number of lines above which each line is drawn with half of its points
const BAND_POINTS = 200;

/**
 * @typedef {object} ComparedRun
 * @property {string} key the run's number
 * @property {string} label
 * @property {string} layer
 * @property {string} map
 * @property {string} group
 * @property {string} outcome
 * @property {Record<string, number | null>} perStep tokens and seconds per step; null if unknown
 *
 * @typedef {{key: string, x: Float64Array, y: Float32Array}} Line
 * @typedef {{show: string, x: string, y: string, ticked: Set<string>, range: [number, number] | null, smooth?: number, metric?: string, larger?: boolean}} View
 *   range: in units of the axis; smooth: weight of the exponential mean; metric: title of the vertical axis, "" for the chart's own;
 *   larger: whether larger values of the metric are better
 */

/**
 * The line through the smallest and the largest value of each bucket, so that no extreme is lost; NaN for a bucket
 * without values that the axis can show.
 * @param {ComparedRun} run
 * @param {Buckets} series
 * @param {string} axis
 * @param {boolean} log
 * @param {number} lines number of lines in the chart
 * @returns {Line | null} null if the run's units per step are unknown for this axis
 */
export function lineOf(run, series, axis, log, lines) {
  const factor = run.perStep[axis];
  if (factor === null || factor === undefined) return null;
  const each = lines > CROWDED && series.step.length > BAND_POINTS ? 2 : 1;
  const rows = Math.ceil(series.step.length / each);
  const x = new Float64Array(2 * rows);
  const y = new Float32Array(2 * rows);
  for (let row = 0; row < rows; row += 1) {
    const begin = row * each;
    let [low, high] = [NaN, NaN];
    for (let i = begin; i < Math.min(begin + each, series.step.length); i += 1) {
      if (!(low <= series.min[i]))
        low = Number.isFinite(series.min[i]) && (!log || series.min[i] > 0) ? series.min[i] : low;
      if (!(high >= series.max[i]))
        high = Number.isFinite(series.max[i]) && (!log || series.max[i] > 0) ? series.max[i] : high;
    }
    x[2 * row] = x[2 * row + 1] = series.step[begin] * factor;
    y[2 * row] = low;
    y[2 * row + 1] = high;
  }
  return { key: run.key, x, y };
}

/**
 * The first non-finite point of a run's curve; null if all points are finite.
 * @param {ComparedRun} run
 * @param {Buckets} series
 * @param {string} axis
 */
export function firstLost(run, series, axis) {
  const row = series.nonfinite.findIndex((count) => count > 0);
  const factor = run.perStep[axis];
  return row < 0 || factor === null
    ? null
    : { x: series.step[row] * factor, text: `${run.label}: not finite from step ${series.step[row]}` };
}

/**
 * Median and quartiles over the runs of a group along the axis. Beyond its last step, a lost run has the value `worst`, and
 * so has every value that is not finite, so the median is NaN where half of the group is lost. A run that finished earlier,
 * or still trains, is omitted beyond its last step.
 * @param {{run: ComparedRun, series: Buckets}[]} members
 * @param {string} axis
 * @param {number} worst the infinity that is worse than every number: -Infinity if larger values are better
 */
export function bandOf(members, axis, worst) {
  const known = members.filter(({ run, series }) => run.perStep[axis] && series.step.length);
  const scaled = known.map(({ run, series }) => ({
    series,
    lost: run.outcome === "lost",
    factor: Number(run.perStep[axis]),
  }));
  const end = Math.max(0, ...scaled.map(({ series, factor }) => series.step[series.step.length - 1] * factor));
  const x = Float64Array.from({ length: BAND_POINTS }, (_, i) => (end * (i + 1)) / BAND_POINTS);
  const [low, median, high] = [0, 1, 2].map(() => new Float32Array(x.length).fill(NaN));
  const at = scaled.map(() => 0);
  x.forEach((place, i) => {
    const values = scaled.flatMap(({ series, lost, factor }, m) => {
      const { step, last } = series;
      while (at[m] + 1 < step.length && step[at[m] + 1] * factor <= place) at[m] += 1;
      if (step[at[m]] * factor > place) return [];
      const over = at[m] === step.length - 1 && step[at[m]] * factor < place - end / BAND_POINTS;
      if (over) return lost ? [worst] : [];
      return [Number.isFinite(last[at[m]]) ? last[at[m]] : worst];
    });
    values.sort((a, b) => a - b);
    [low[i], median[i], high[i]] = [0.25, 0.5, 0.75].map((q) => quantile(values, q));
  });
  return { x, low, median, high };
}

/**
 * @param {number[]} sorted
 * @param {number} q
 */
function quantile(sorted, q) {
  if (!sorted.length) return NaN;
  const [i, rest] = [Math.floor(q * (sorted.length - 1)), (q * (sorted.length - 1)) % 1];
  const value = rest ? sorted[i] + rest * (sorted[i + 1] - sorted[i]) : sorted[i];
  return Number.isFinite(value) ? value : NaN;
}

/**
 * The page's address for this view; its query contains every setting that differs from the default.
 * @param {string} search query of the current address
 * @param {View} view
 * @param {string[]} keys keys of all runs
 * @param {string} usual what is shown by default
 */
export function addressOf(search, { show, x, y, ticked, range, smooth = 0, metric = "" }, keys, usual) {
  const query = new URLSearchParams(search);
  /** @param {string} name @param {string | null} value */
  const put = (name, value) => (value ? query.set(name, value) : query.delete(name));
  put("show", show === usual ? null : show);
  put("x", x === "step" ? null : x);
  put("y", y === "log" ? null : y);
  put("metric", metric);
  put("smooth", smooth ? String(smooth) : null);
  put("from", range && String(Number(range[0].toPrecision(6))));
  put("to", range && String(Number(range[1].toPrecision(6))));
  put("on", show === "groups" && ticked.size ? keys.filter((key) => ticked.has(key)).join(",") : null);
  put("off", show === "runs" && ticked.size < keys.length ? keys.filter((key) => !ticked.has(key)).join(",") : null);
  return `?${query.toString().replaceAll("%2C", ",")}`;
}

/**
 * The runs whose lines an address shows.
 * @param {string} search
 * @param {string} show
 * @param {string[]} keys
 */
export function tickedOf(search, show, keys) {
  const query = new URLSearchParams(search);
  const named = new Set((query.get(show === "groups" ? "on" : "off") ?? "").split(",").filter(Boolean));
  return new Set(keys.filter((key) => named.has(key) === (show === "groups")));
}

/**
 * The range of the axis in an address; null: the whole axis.
 * @param {string} search
 * @returns {[number, number] | null}
 */
export function rangeOf(search) {
  const query = new URLSearchParams(search);
  const [from, to] = ["from", "to"].map((name) => Number.parseFloat(query.get(name) ?? ""));
  return from < to && Number.isFinite(to - from) ? [from, to] : null;
}

/**
 * The items of the chart of ranges, one bar per map. range_items of web/compared.py makes the same items (a test
 * compares the two).
 * @param {PooledRange[]} pooled
 */
export function rangeItems(pooled) {
  return pooled.map((range) => {
    const { reparameterization: name, runs } = range;
    const label = `${name} (${runs} run${runs === 1 ? "" : "s"})`;
    return { ...range, run_id: null, label, color: `map-${name.split(", ")[0]}` };
  });
}
