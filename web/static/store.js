// The points of one series on this page: appended as they come, merged into longer buckets beyond `limit`, no extreme lost.

const lesser = (a, b) => (b < a || Number.isNaN(a) ? b : a);
const greater = (a, b) => (b > a || Number.isNaN(a) ? b : a);

export class SeriesStore {
  constructor(width, limit = 2000) {
    Object.assign(this, { width, limit, count: 0, capacity: 0, span: 0, lastStep: -Infinity });
  }

  // `lastStep` of the answer when its last bucket covers more than its first step.
  load(data, lastStep) {
    Object.assign(this, { count: 0, span: 0, width: data.width, capacity: 0, lastStep: -Infinity });
    this.reserve(data.step.length);
    for (let i = 0; i < data.step.length; i += 1) this.push(data, i);
    if (this.count) this.lastStep = Math.max(lastStep ?? -Infinity, this.step[this.count - 1]);
    const raw = data.min === data.max;
    if (!raw && this.count > 1) {
      this.first = this.step[0];
      this.span = Math.max(...[...this.step.subarray(1, this.count)].map((s, i) => s - this.step[i]));
    }
    this.compact();
  }

  // Adds the points after lastStep; those already here are dropped, so replays do no harm. Returns how many were new.
  append(data) {
    let added = 0;
    for (let i = 0; i < data.step.length; i += 1) {
      if (data.step[i] <= this.lastStep) continue;
      const same = this.span && this.count && this.bucket(data.step[i]) === this.bucket(this.step[this.count - 1]);
      if (same) this.merge(this.count - 1, data, i);
      else this.push(data, i);
      this.lastStep = data.step[i];
      added += 1;
    }
    this.compact();
    return added;
  }

  // Takes back the steps from `from` on; false when a bucket straddles it and the series must be read again.
  truncate(from) {
    if (this.lastStep < from) return true;
    let keep = this.count;
    while (keep && this.step[keep - 1] >= from) keep -= 1;
    const whole = !this.span || !keep || this.step[keep - 1] + this.span <= from;
    this.count = keep;
    this.lastStep = Math.min(this.lastStep, from - 1);
    return whole;
  }

  get data() {
    const cut = (part, width) => part?.subarray(0, this.count * width) ?? new Float32Array(0);
    const { min, max, last, nonfinite, width } = this;
    const rows = { min: cut(min, width), max: cut(max, width), last: cut(last, width), nonfinite: cut(nonfinite, width) };
    return { step: cut(this.step, 1), width, ...rows };
  }

  bucket(step) {
    return Math.floor((step - this.first) / this.span);
  }

  reserve(capacity) {
    if (capacity <= this.capacity) return;
    this.capacity = Math.max(capacity, 256, Math.min(this.capacity * 2, this.limit + 256));
    const grow = (old, Kind, width) => {
      const bigger = new Kind(this.capacity * width);
      if (old) bigger.set(old.subarray(0, this.count * width));
      return bigger;
    };
    this.step = grow(this.step, Float64Array, 1);
    for (const part of ["min", "max", "last", "nonfinite"]) this[part] = grow(this[part], Float32Array, this.width);
  }

  push(data, i) {
    this.reserve(this.count + 1);
    const [at, from, w] = [this.count * this.width, i * this.width, this.width];
    this.step[this.count] = data.step[i];
    for (const part of ["min", "max", "last", "nonfinite"]) this[part].set(data[part].subarray(from, from + w), at);
    this.count += 1;
  }

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
    if (this.count <= this.limit) return;
    const old = { ...this.data, step: this.step.slice(0, this.count) };
    for (const part of ["min", "max", "last", "nonfinite"]) old[part] = old[part].slice();
    this.first = old.step[0];
    this.span = Math.ceil((this.lastStep - this.first + 1) / (this.limit / 2));
    this.count = 0;
    for (let i = 0; i < old.step.length; i += 1) {
      if (this.count && this.bucket(old.step[i]) === this.bucket(this.step[this.count - 1])) this.merge(this.count - 1, old, i);
      else this.push(old, i);
    }
  }
}
