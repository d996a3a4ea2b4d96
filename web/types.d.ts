// Shapes that the modules of web/static share: what the API answers with, what the charts draw. For the type checker only.

/** A number as JSON carries it: what JSON lacks is the text "NaN", "Infinity" or "-Infinity". */
type JsonNumber = number | string;

interface TypedArrayAnswer {
  dtype: string;
  bdata: string;
  shape?: string;
}

type Numbers = TypedArrayAnswer | JsonNumber[];

/** A series from the API or the live stream: raw `value`, or buckets. */
interface SeriesAnswer {
  name: string;
  width?: number;
  last_step?: number;
  step: Numbers;
  value?: Numbers;
  min?: Numbers;
  max?: Numbers;
  last?: Numbers;
  nonfinite?: Numbers;
}

/** A series in memory: `step` has one number per row, the others `width` of them, row by row. */
interface Buckets {
  step: Float64Array;
  width: number;
  min: Float32Array;
  max: Float32Array;
  last: Float32Array;
  nonfinite: Float32Array;
}

/** A layer's series as a screen shows it, from GET /api/runs/{id}/overview. */
interface Summary {
  step: Float64Array;
  width: number;
  /** Over the finite values of all eigenvalues; `lowAt`: whose the smallest is. */
  low: Float32Array;
  high: Float32Array;
  lowAt: Int32Array;
  median: Float32Array;
  /** Last values by eigenvalue. */
  lines: Map<number, Float32Array>;
  /** Of each eigenvalue: first and newest finite value, value in the newest row with a finite one, largest value. */
  each: Record<"first" | "last" | "end" | "max", Float32Array>;
  /** By eigenvalue and row: -1 finite, else as in NONFINITE; null when all are finite. */
  kinds: Int8Array | null;
  /** A bit by eigenvalue and row: something was 0 or less. */
  below: Uint8Array | null;
  heat: { codes: Uint8Array; rows: number[]; low: number; high: number; order: string } | null;
}

type Series = Buckets | Summary;

type SeriesByName = Record<string, Series>;

interface AlertAnswer {
  id: number;
  run_id: number;
  kind: string;
  severity: "warning" | "critical";
  step: number;
  series: string;
  layer: number | null;
  eigenvalue: number | null;
  message: string;
  created_at: number;
}

interface LogPiece {
  attempt: number;
  start: number;
  text: string;
  at: number;
  cut: number;
}

interface LogAnswer {
  status: string;
  pieces: LogPiece[];
  next: number;
}

interface RunConfig {
  optimizer: { lr: number };
}

interface RunAnswer {
  id: number;
  name: string | null;
  host: string | null;
  gpu_name: string | null;
  status: string;
  status_reason: string;
  step: number;
  steps: number;
  steps_per_second: number | null;
  eta_seconds: number | null;
  waits_for: string | null;
  bytes_stored: number;
  started_at: number | null;
  finished_at: number | null;
  largest_ratio: JsonNumber | null;
  largest_relative_step: JsonNumber | null;
  nearest_distance: JsonNumber | null;
  overflow_budget: JsonNumber | null;
  alerts: number;
  url: string;
  result: { train_loss?: JsonNumber | null; eval_loss?: JsonNumber | null } | null;
  divergence: Record<string, unknown> | null;
  unstable: { eigenvalues: number; of: number; worst_distance: JsonNumber; overflow_budget: JsonNumber | null; overflows_at_length: number | null } | null;
  cause: string | null;
  config: RunConfig;
  forms: { map: string; time: string }[];
}

/** What became of several runs, by the server's one rule. */
interface Counted {
  finite: number;
  stable: number;
  unstable: number;
  unknown: number;
  lost: number;
  open: number;
  total: number;
}

type Spread = Record<"median" | "q25" | "q75" | "min" | "max" | "mean" | "std", JsonNumber | null>;

interface SweepGridAnswer extends Counted {
  rows: { path: string | null; values: unknown[] };
  columns: { path: string | null; values: unknown[] };
  cells: (Counted & { outcome: string; loss: Spread; runs: number[] })[][];
}

/** One row of the comparison's ranges of |grad| / |w|. */
interface RangeAnswer {
  run_id: number | null;
  reparameterization: string;
  min: JsonNumber | null;
  q05: JsonNumber | null;
  median: JsonNumber | null;
  q95: JsonNumber | null;
  max: JsonNumber | null;
  finite: number;
  total: number;
}

type PooledRange = Omit<RangeAnswer, "run_id"> & { runs: number; at_zero: number };

/** GET /api/compare/curves. */
interface CompareAnswer {
  curves?: Record<string, Record<string, SeriesAnswer>>;
  ranges: RangeAnswer[];
  pooled: PooledRange[];
}

/** What our modules read of an axis that Plotly has drawn: between data and pixels, from its own offset on. */
interface PlotlyAxis {
  _offset: number;
  _length: number;
  d2p(value: number): number;
  p2d(pixel: number): number;
}

/** What a trace of web/charts says about itself; see web/figures.py. */
interface TraceMeta {
  field: string;
  series?: string;
  with?: string;
  top?: string;
  unless?: string;
  unbounded?: string;
  plane?: string;
  each?: string;
  color?: string;
  value?: number;
  severity?: string;
  kind?: string;
  low?: RangeField;
  high?: RangeField;
}

type RangeField = "min" | "q05" | "median" | "q95" | "max";

/** A trace of Plotly's; only what our modules read or write is listed. */
interface Trace {
  meta: TraceMeta;
  name?: string;
  hovertemplate?: string;
  fillcolor?: string;
  line?: { color?: string; dash?: string };
  marker?: Record<string, unknown> & { color?: unknown; symbol?: unknown };
  x?: any;
  y?: any;
  type?: string;
  mode?: string;
  [other: string]: unknown;
}

interface Layout {
  /** `plane`: its axes are no steps. */
  meta?: { chart: string; alerts: string[]; plane?: boolean };
  xaxis?: Record<string, unknown>;
  yaxis?: Record<string, unknown> & { type?: string };
  [other: string]: unknown;
}

interface Figure {
  data: Trace[];
  layout: Layout;
}

/** One chart in the answer of GET /api/figures. */
interface ChartEntry {
  title: string;
  meaning: string;
  scope: string;
  series: string[];
  figure: Figure;
  config: Record<string, unknown>;
}

/** What a template trace is copied for: an eigenvalue, a run or a map. */
interface Item {
  key: string;
  label: string;
  color?: string;
  dash?: string;
  column?: number;
  note?: string;
}

interface EigenvalueItem extends Item {
  column: number;
  color: string;
  dash: string;
  slot: number;
  note?: string;
}

type RangeItem = RangeAnswer & { label: string; color: string };

/** What is watched of a layer, as the page's choice of layers lists it. */
interface LayerRecord {
  id: string;
  layer: number;
  /** 0 where their number is not known. */
  eigenvalues: number;
  /** Its series; none of a run that has not begun. */
  kinds: string[];
  /** "" where no map leads from a weight to its eigenvalues. */
  map: string;
  /** Whether |lambda_bar| = 1 is a boundary of stability. */
  bounded: boolean;
}

/** The events of the live stream, by name. */
interface StatusEvent {
  status?: string;
  reason?: string | null;
  step?: number;
  steps_per_second?: number | null;
  truncated_from?: number | null;
}

interface PointsEvent {
  seq: number;
  step: number;
  steps_per_second: number | null;
  series: (SeriesAnswer & { width: number })[];
}

type Colors = Record<string, string>;

/** A div that Plotly has drawn into. */
interface PlotlyElement extends HTMLElement {
  on(event: "plotly_relayout", handler: (change: Record<string, any>) => void): void;
  on(event: "plotly_doubleclick", handler: () => void): void;
  on(event: "plotly_click", handler: (event: { points: ClickedPoint[] }) => void): void;
}

interface ClickedPoint {
  x: number;
  y: number | string;
  customdata?: number | null;
  data: { type: string; name?: string; meta?: TraceMeta };
}

/** What a run page shows, as its address says it; see view.js. */
interface View {
  /** Id of the record that is shown: a layer's number, or "0.dt_bias". */
  layer: string;
  from: number | null;
  to: number | null;
  eigenvalues: string;
  top: string;
  scale: string;
  scales: string;
  axis: string;
  rows: string;
  smooth: number;
}

declare var Plotly: {
  react(element: HTMLElement, data: unknown[], layout: object, config: object): Promise<void>;
  relayout(element: HTMLElement, change: object): Promise<void>;
  toImage(figure: Figure, size: object): Promise<string>;
};
