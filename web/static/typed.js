// Typed arrays as the server sends them ({dtype, shape, bdata: base64 little-endian}) to JavaScript's own, and series to buckets.

const KINDS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array };

export function decode(typed) {
  if (Array.isArray(typed)) return Float64Array.from(typed, Number);
  const Kind = KINDS[typed.dtype];
  if (!Kind) throw new TypeError(`dtype is ${typed.dtype}; allowed are ${Object.keys(KINDS)}`);
  const text = atob(typed.bdata);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return new Kind(bytes.buffer);
}

export function encode(array) {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return { dtype: array instanceof Float32Array ? "f4" : "f8", bdata: btoa(text) };
}

// Buckets: {step (n), width, min, max, last, nonfinite (n * width, one row per step)}; a raw value is a bucket of one.
export function buckets(series) {
  const step = decode(series.step);
  const width = series.width ?? 1;
  if (!series.value) {
    const part = (name) => Float32Array.from(decode(series[name]));
    return { step, width, min: part("min"), max: part("max"), last: part("last"), nonfinite: part("nonfinite") };
  }
  const last = Float32Array.from(decode(series.value));
  const finite = new Float32Array(last.length);
  const nonfinite = new Float32Array(last.length);
  for (let i = 0; i < last.length; i += 1) {
    const good = Number.isFinite(last[i]);
    finite[i] = good ? last[i] : NaN;
    nonfinite[i] = good ? 0 : 1;
  }
  return { step, width, min: finite, max: finite, last, nonfinite };
}
