// A figure that the server has bound, in this page's colours.

import { colors } from "./theme.js";
import { decode } from "./typed.js";

/** @param {Trace} trace */
export function recolored(trace) {
  const [x, y] = [trace.x, trace.y].map((values) => (values?.bdata === undefined ? values : decode(values)));
  const color = colors()[trace.meta.color ?? ""] ?? colors().muted;
  const marker = trace.marker && { ...trace.marker, color };
  return { ...trace, x, y, line: { ...trace.line, color }, ...(marker && { marker }) };
}
