// The points of one series. New points are appended; when there are more than `limit` points, they are merged into
// longer buckets that keep the extremes.

const PARTS = /** @type {const} */ (["min", "max", "last", "nonfinite"]);

/** @param {number} a @param {number} b */
const lesser = (a, b) => (b < a || Number.isNaN(a) ? b : a);
/** @param {number} a @param {number} b */
const greater = (a, b) => (b > a || Number.isNaN(a) ? b : a);

export class SeriesStore {
  points = 0;
  capacity = 0;
  /** Number of steps per bucket, counted from `first`; 0 while every point is its own bucket. */
  span = 0;
  first = 0;
  lastStep = -Infinity;
  step = new Float64Array(0);
  min = new Float32Array(0);
  max = new Float32Array(0);
  last = new Float32Array(0);
  nonfinite = new Float32Array(0);

  /**
   * @param {number} width numbers per point
   * @param {number} [limit] maximum number of points
   */
  constructor(width, limit = 2000) {
    this.width = width;
    this.limit = limit;
  }

  /**
   * Replaces everything with `data`.
   * @param {Buckets} data
   * @param {number} [lastStep] set if the last bucket covers more than its first step
   */
  load(data, lastStep = -Infinity) {
    Object.assign(this, { points: 0, span: 0, width: data.width, capacity: 0, lastStep: -Infinity });
    this.reserve(data.step.length);
    for (let i = 0; i < data.step.length; i += 1) this.push(data, i);
    if (this.points) this.lastStep = Math.max(lastStep, this.step[this.points - 1]);
    const raw = data.min === data.max;
    if (!raw && this.points > 1) {
      this.first = this.step[0];
      this.span = Math.max(...[...this.step.subarray(1, this.points)].map((s, i) => s - this.step[i]));
    }
    this.compact();
  }

  /**
   * Adds the points after lastStep and ignores earlier points, so repeated points do not matter.
   * @param {Buckets} data
   * @returns {number} number of new points
   */
  append(data) {
    let added = 0;
    for (let i = 0; i < data.step.length; i += 1) {
      if (data.step[i] <= this.lastStep) continue;
      const same = this.span && this.points && this.bucket(data.step[i]) === this.bucket(this.step[this.points - 1]);
      if (same) this.merge(this.points - 1, data, i);
      else this.push(data, i);
      this.lastStep = data.step[i];
      added += 1;
    }
    this.compact();
    return added;
  }

  /**
   * Drops all points from step `from` on.
   * @param {number} from
   * @returns {boolean} false if a bucket has steps on both sides of `from`, so that the series must be read again
   */
  truncate(from) {
    if (this.lastStep < from) return true;
    let keep = this.points;
    while (keep && this.step[keep - 1] >= from) keep -= 1;
    const whole = !this.span || !keep || this.step[keep - 1] + this.span <= from;
    this.points = keep;
    this.lastStep = Math.min(this.lastStep, from - 1);
    return whole;
  }

  /** @returns {Buckets} views of the stored points, valid until the next change */
  get data() {
    const { points, width } = this;
    const rows = { min: this.min, max: this.max, last: this.last, nonfinite: this.nonfinite };
    for (const part of PARTS) rows[part] = rows[part].subarray(0, points * width);
    return { step: this.step.subarray(0, points), width, ...rows };
  }

  /** The newest point's last values; null if there is no point. */
  newest() {
    return this.points ? this.last.subarray((this.points - 1) * this.width, this.points * this.width) : null;
  }

  /** @param {number} step */
  bucket(step) {
    return Math.floor((step - this.first) / this.span);
  }

  /** @param {number} capacity */
  reserve(capacity) {
    if (capacity <= this.capacity) return;
    this.capacity = Math.max(capacity, 256, Math.min(this.capacity * 2, this.limit + 256));
    const step = new Float64Array(this.capacity);
    step.set(this.step.subarray(0, this.points));
    this.step = step;
    for (const part of PARTS) {
      const rows = new Float32Array(this.capacity * this.width);
      rows.set(this[part].subarray(0, this.points * this.width));
      this[part] = rows;
    }
  }

  /** @param {Buckets} data @param {number} i */
  push(data, i) {
    this.reserve(this.points + 1);
    const [at, from, w] = [this.points * this.width, i * this.width, this.width];
    this.step[this.points] = data.step[i];
    for (const part of PARTS) this[part].set(data[part].subarray(from, from + w), at);
    this.points += 1;
  }

  /** @param {number} row @param {Buckets} data @param {number} i */
  merge(row, data, i) {
    for (let c = 0; c < this.width; c += 1) {
      const [at, from] = [row * this.width + c, i * this.width + c];
      this.min[at] = lesser(this.min[at], data.min[from]);
      this.max[at] = greater(this.max[at], data.max[from]);
      this.last[at] = data.last[from];
      this.nonfinite[at] += data.nonfinite[from];
    }
  }

  compact() {
    if (this.points <= this.limit) return;
    const old = this.data;
    const copy = { ...old, step: old.step.slice() };
    for (const part of PARTS) copy[part] = old[part].slice();
    this.first = copy.step[0];
    this.span = Math.ceil((this.lastStep - this.first + 1) / (this.limit / 2));
    this.points = 0;
    for (let i = 0; i < copy.step.length; i += 1) {
      if (this.points && this.bucket(copy.step[i]) === this.bucket(this.step[this.points - 1]))
        this.merge(this.points - 1, copy, i);
      else this.push(copy, i);
    }
  }
}
