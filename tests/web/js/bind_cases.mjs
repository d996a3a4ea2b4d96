// Binds the cases on standard input with static/bind.js; prints the figures with non-finite numbers as strings.

const { bind } = await import(`${process.env.STATIC}/chart/bind.js`);
const { buckets } = await import(`${process.env.STATIC}/lib/typed.js`);
const { unpack } = await import(`${process.env.STATIC}/run/overview.js`);

let text = "";
for await (const chunk of process.stdin) text += chunk;
const named = (key, value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value, (v) => named("", v));
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  return value;
};
const read = (body) =>
  [...unpack(Uint8Array.from(atob(body), (c) => c.charCodeAt(0)).buffer).found].map(([name, { series }]) => [
    name,
    series,
  ]);
const answers = JSON.parse(text).map(({ figure, data, overview, options }) => {
  const series = Object.fromEntries(
    overview ? read(overview) : Object.entries(data).map(([name, s]) => [name, buckets(s)]),
  );
  return bind(figure, series, options);
});
process.stdout.write(JSON.stringify(answers, named));
