// Converts the server's typed arrays ({dtype, shape, bdata: base64 little-endian} as in
// stablessm_core/telemetry/typed_arrays.py) to JavaScript's typed arrays and back, and converts series to buckets.

/** @type {Record<string, typeof Float32Array | typeof Float64Array | typeof Int32Array | typeof Uint8Array>} */
const ARRAYS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };

/** @param {Numbers} typed */
export function decode(typed) {
  if (Array.isArray(typed)) return Float64Array.from(typed, Number);
  const Numbers = ARRAYS[typed.dtype];
  if (!Numbers) throw new TypeError(`dtype is ${typed.dtype}; allowed: ${Object.keys(ARRAYS)}`);
  const text = atob(typed.bdata);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new Numbers(bytes.buffer);
}

/**
 * @param {Float32Array | Float64Array} array
 * @returns {TypedArrayAnswer}
 */
export function encode(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return { dtype: array instanceof Float32Array ? "f4" : "f8", bdata: btoa(text) };
}

/**
 * A series as buckets; a raw value is a bucket with one value.
 * @param {Omit<SeriesAnswer, "name">} series
 * @returns {Buckets}
 */
export function buckets(series) {
  const step = Float64Array.from(decode(series.step));
  const width = series.width ?? 1;
  /** @param {Numbers} [numbers] */
  const floats = (numbers = []) => Float32Array.from(decode(numbers));
  if (series.value) return raw(step, width, floats(series.value));
  const { min, max, last, nonfinite } = series;
  return { step, width, min: floats(min), max: floats(max), last: floats(last), nonfinite: floats(nonfinite) };
}

/**
 * Raw values as buckets with one value each.
 * @param {Float64Array} step
 * @param {number} width
 * @param {Float32Array} last
 * @returns {Buckets}
 */
export function raw(step, width, last) {
  const finite = new Float32Array(last.length);
  const nonfinite = new Float32Array(last.length);
  for (let i = 0; i < last.length; i += 1) {
    const good = Number.isFinite(last[i]);
    finite[i] = good ? last[i] : NaN;
    nonfinite[i] = good ? 0 : 1;
  }
  return { step, width, min: finite, max: finite, last, nonfinite };
}
