// What the browser's modules make of cases that Python hands in as JSON: [{what, ...}], answered as JSON with floats as
// text.

const at = (name) => import(`${process.env.STATIC}/${name}`);
const { comparedFigure } = await at("compare/figure.js");
const { logTicks } = await at("chart/log_ticks.js");
const { axisValues } = await at("new/axis_values.js");
const { rangeItems } = await at("compare/model.js");
const { unpack } = await at("run/overview.js");
const { byDecay, reasons } = await at("run/reasons.js");
const { buckets } = await at("lib/typed.js");

const MAKERS = {
  axis_values: ({ text }) => axisValues(text),
  log_ticks: ({ low, high }) => logTicks(low, high),
  compared: ({ figure, runs, curves, view, palette }) => {
    const data = new Map(Object.entries(curves).map(([key, series]) => [key, buckets(series)]));
    return comparedFigure(figure, runs, data, { ...view, ticked: new Set(view.ticked) }, palette).figure;
  },
  ranges: ({ pooled }) => rangeItems(pooled),
  reasons: ({ overview, layer }) => {
    const { found } = unpack(Uint8Array.from(atob(overview), (c) => c.charCodeAt(0)).buffer);
    const of = (kind) => found.get(`ssm/${layer}/${kind}`)?.series;
    const distance = of("boundary_distance");
    const why = reasons({ distance, eigenvalue: of("eigenvalue"), layer });
    return { columns: [...why.keys()], end: byDecay(distance, "end"), start: byDecay(distance, "start") };
  },
};

const text = await new Response(process.stdin).text();
const plain = (_, value) => {
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  return ArrayBuffer.isView(value) ? [...value] : value;
};
console.log(
  JSON.stringify(
    JSON.parse(text).map((one) => MAKERS[one.what](one)),
    plain,
  ),
);
