// Binds the cases on standard input with static/bind.js; prints the figures with non-finite numbers as strings.

const { bind } = await import(`${process.env.STATIC}/bind.js`);
const { buckets } = await import(`${process.env.STATIC}/typed.js`);

let text = "";
for await (const chunk of process.stdin) text += chunk;
const named = (key, value) => {
  if (ArrayBuffer.isView(value)) return Array.from(value, (v) => named("", v));
  if (typeof value === "number" && !Number.isFinite(value)) return String(value);
  return value;
};
const answers = JSON.parse(text).map(({ figure, data, options }) => {
  const series = Object.fromEntries(Object.entries(data).map(([name, s]) => [name, buckets(s)]));
  return bind(figure, series, options);
});
process.stdout.write(JSON.stringify(answers, named));
