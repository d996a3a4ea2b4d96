// Applies this page's colours to a figure that the server has bound.

import { colors } from "../lib/theme.js";
import { decode } from "../lib/typed.js";

/** @param {Trace} trace */
export function recolored(trace) {
  const [x, y] = [trace.x, trace.y].map((values) => (values?.bdata === undefined ? values : decode(values)));
  const color = colors()[trace.meta.color ?? ""] ?? colors().muted;
  const marker = trace.marker && { ...trace.marker, color };
  return { ...trace, x, y, line: { ...trace.line, color }, ...(marker && { marker }) };
}
