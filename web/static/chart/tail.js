// A canvas over a chart's axes for the points that arrived after Plotly last drew the chart. Drawing these points takes
// almost no time, while a redraw by Plotly takes 20 to 50 ms. `_fullLayout` with `_size`, `l2p` and `c2p` is an
// undocumented API of Plotly; a browser test checks that it still works.

/** Plotly's names of dashes, as lengths in pixels. @type {Record<string, number[] | undefined>} */
export const DASH = {
  dash: [9, 9],
  dot: [3, 3],
  dashdot: [9, 3, 3, 3],
  longdash: [15, 15],
  longdashdot: [15, 6, 3, 6],
};

export class Tail {
  /** Length of each trace's line so far, in pixels, where its dashes continue. @type {Map<number, number>} */
  dashed = new Map();

  /** @param {HTMLElement} element element that Plotly has drawn into */
  constructor(element) {
    this.element = element;
    this.canvas = document.createElement("canvas");
    this.canvas.className = "tail";
    this.pen = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
  }

  /** @returns {any} Plotly's own layout, with the axes */
  get layout() {
    return /** @type {any} */ (this.element)._fullLayout;
  }

  // Clears the canvas and puts it above the lines, below hover texts and axis titles.
  clear() {
    const { l, t, w, h } = this.layout._size;
    const layers = this.element.querySelectorAll(".main-svg");
    if (!this.canvas.isConnected) layers[layers.length - 1]?.before(this.canvas);
    Object.assign(this.canvas.style, { left: `${l}px`, top: `${t}px`, width: `${w}px`, height: `${h}px` });
    this.canvas.width = Math.round(w * devicePixelRatio); // setting the width clears the canvas
    this.canvas.height = Math.round(h * devicePixelRatio);
    this.dashed.clear();
    this.pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
  }

  /**
   * Draws the traces of a figure that contains the last drawn point and the new points.
   * @param {Figure} figure
   * @returns {boolean} whether all points lie within the axes
   */
  draw(figure) {
    const { xaxis, yaxis } = this.layout;
    const drawn = /** @type {any} */ (this.element)._fullData ?? [];
    let inside = true;
    /** @type {number[][]} */
    let below = [];
    for (const [i, trace] of figure.data.entries()) {
      if (trace.visible === false || drawn[i]?.visible !== true || !trace.x?.length) continue;
      if (trace.type === "heatmap") this.cells(trace, drawn[i], xaxis, yaxis);
      else if (String(trace.mode).includes("lines") && trace.yaxis !== "y2") {
        const points = Array.from(trace.x, (x, k) => [xaxis.l2p(x), yaxis.c2p(trace.y[k])]);
        if (trace.meta.field !== "constant")
          inside &&= points.every(([x, y]) => x <= xaxis._length && !(y < -1 || y > yaxis._length + 1));
        if (trace.fill === "tonexty") this.area(below, points, String(trace.fillcolor));
        else if (Number(/** @type {any} */ (trace.line)?.width) > 0) this.line(points, trace, i);
        below = points;
      }
    }
    return inside;
  }

  /**
   * @param {number[][]} points
   * @param {Trace} trace
   * @param {number} place index of the trace in the figure
   */
  line(points, trace, place) {
    const { pen } = this;
    const { color = "#888", width = 1.5, dash = "solid" } = /** @type {any} */ (trace.line);
    pen.globalAlpha = Number(trace.opacity ?? 1);
    pen.strokeStyle = color;
    pen.lineWidth = width;
    pen.miterLimit = 2; // as in Plotly, so that sharp corners get no spikes
    pen.setLineDash(DASH[dash] ?? []);
    pen.lineDashOffset = this.dashed.get(place) ?? 0; // each piece is shorter than a dash, so dashes continue where the last piece ended
    this.dashed.set(place, traced(pen, points, pen.lineDashOffset));
    pen.stroke();
    pen.globalAlpha = 1;
  }

  /**
   * @param {number[][]} low
   * @param {number[][]} high
   * @param {string} color
   */
  area(low, high, color) {
    const { pen } = this;
    pen.fillStyle = color;
    pen.beginPath();
    for (const [x, y] of [...low, ...high.toReversed()]) if (Number.isFinite(y)) pen.lineTo(x, y);
    pen.fill();
  }

  /**
   * @param {Trace} trace a heat map of the new columns, after one column that is already drawn
   * @param {any} drawn Plotly's own trace of the heat map
   * @param {any} xaxis
   * @param {any} yaxis
   */
  cells({ x, y, z, meta }, drawn, xaxis, yaxis) {
    if (meta.field !== "heat" && meta.kind !== "zero") return;
    const columns = /** @type {ArrayLike<number>[]} */ (z);
    const half = y.length > 1 && typeof y[0] === "number" ? (y[1] - y[0]) / 2 : 0.5;
    const shades = shadesOf(drawn.colorscale);
    const at = (/** @type {number} */ row) => (typeof y[row] === "number" ? y[row] : row);
    for (let i = 1; i < x.length; i += 1) {
      const left = xaxis.l2p((x[i - 1] + x[i]) / 2);
      const width = Math.max(1, xaxis.l2p(x[i] + (x[i] - x[i - 1]) / 2) - left);
      for (let row = 0; row < y.length; row += 1) {
        const value = columns[row][i];
        if (!Number.isFinite(value)) continue;
        const top = yaxis.l2p(at(row) + half);
        const place = Math.round((255 * (value - drawn.zmin)) / (drawn.zmax - drawn.zmin));
        this.pen.fillStyle = shades[Math.max(0, Math.min(255, place))];
        this.pen.fillRect(left, top, width, yaxis.l2p(at(row) - half) - top + 0.5);
      }
    }
  }
}

/**
 * Starts a path through the points, with gaps at non-finite points.
 * @param {CanvasRenderingContext2D} pen
 * @param {number[][]} points
 * @param {number} along length of the line before the first point
 * @returns {number} length of the line from its last gap to the last point
 */
export function traced(pen, points, along) {
  pen.beginPath();
  let on = false;
  for (const [k, [x, y]] of points.entries()) {
    if (on && Number.isFinite(y)) {
      pen.lineTo(x, y);
      along += Math.hypot(x - points[k - 1][0], y - points[k - 1][1]);
    } else if (Number.isFinite(y)) pen.moveTo(x, y);
    else along = 0;
    on = Number.isFinite(y);
  }
  return along;
}

/** @type {WeakMap<[number, string][], string[]>} */
const known = new WeakMap();

/** @param {[number, string][]} scale of #rrggbb colours, from 0 to 1 */
function shadesOf(scale) {
  const shades = known.get(scale) ?? Array.from({ length: 256 }, (_, i) => shade(scale, i / 255));
  known.set(scale, shades);
  return shades;
}

/**
 * @param {[number, string][]} scale
 * @param {number} place position on the scale, from 0 to 1
 */
function shade(scale, place) {
  const i = Math.max(
    1,
    scale.findIndex(([end]) => end >= place),
  );
  const [[low, from], [high, to]] = [scale[i - 1], scale[i]];
  const part = (place - low) / (high - low);
  const [a, b] = [from, to].map((color) => [1, 3, 5].map((k) => Number.parseInt(color.slice(k, k + 2), 16)));
  return `rgb(${a.map((v, k) => Math.round(v + part * (b[k] - v))).join(" ")})`;
}
