// Memory of a device over time by role and by line, at several resolutions. Every value is one that the device had: a
// state is that after the event with the most memory in an interval, and an interval of a coarser level has the state of
// the one of its two intervals that had more.

import { MISSING, type Columns } from "./columns";
import type { DeviceLayers, LayersData } from "./manifest";

export type LayerBy = "role" | "line";

/** Bytes of a role or line in each interval: in the interval's state, and its own minimum and maximum there. */
interface LayerValues {
  peak: Float64Array;
  least: Float64Array;
  most: Float64Array;
}

interface Level {
  /** Event of each interval's state; MISSING if the interval is not known. */
  seq: Float64Array;
  total: Float64Array;
  layers: Record<LayerBy, (LayerValues | null)[]>;
}

export interface LayerSlice {
  /** Begin of each interval, and end of the last one, in seconds. */
  times: number[];
  /** Returns the values of a layer, one per time; null where unknown. */
  values: (layer: number, kind: keyof LayerValues) => (number | null)[];
}

/** State of one interval. */
export interface LayerState {
  begin: number;
  end: number;
  seq: number;
  total: number;
  of: (layer: number) => { peak: number; least: number; most: number };
}

export class Layers {
  readonly begin: number;
  readonly end: number;
  readonly points: number;
  private readonly levels: Level[];

  constructor(columns: Columns, data: LayersData, device: DeviceLayers) {
    this.begin = data.begin / 1e9;
    this.end = data.end / 1e9;
    this.points = data.points;
    const read = (refs: DeviceLayers["roles"]) => refs.map((layer): LayerValues | null => {
      if (!layer) return null;
      const peak = columns.read(layer[0]);
      return { peak, most: columns.read(layer[1]).map((above, i) => peak[i] + above), least: columns.read(layer[2]) };
    });
    const layers = { role: read(device.roles), line: read(device.lines) };
    const total = new Float64Array(this.points);
    for (const layer of layers.role) layer?.peak.forEach((bytes, i) => (total[i] += bytes));
    this.levels = [{ seq: columns.read(device.seq), total, layers }];
    while (this.last.total.length > 100) this.levels.push(halve(this.last));
  }

  private get last(): Level {
    return this.levels[this.levels.length - 1];
  }

  /** Returns the numbers of the layers that ever had bytes. */
  used(by: LayerBy): number[] {
    return [...this.levels[0].layers[by].keys()].filter((layer) => this.levels[0].layers[by][layer]);
  }

  covers(begin: number, end: number): boolean {
    return this.begin <= begin && end <= this.end;
  }

  /** Returns the visible part in about `width` intervals. */
  slice(by: LayerBy, begin: number, end: number, width: number): LayerSlice {
    const depth = this.depth(begin, end, width);
    const { seq, layers } = this.levels[depth];
    const step = this.step(depth);
    const first = Math.max(0, Math.floor((begin - this.begin) / step));
    const until = Math.min(seq.length, Math.ceil((end - this.begin) / step) + 1);
    const intervals = Array.from({ length: Math.max(until - first, 0) }, (_, i) => first + i);
    const times = [...intervals.map((i) => this.begin + i * step), Math.min(this.begin + until * step, this.end)];
    return {
      times,
      values: (layer, kind) => {
        const values = layers[by][layer]?.[kind];
        const shown = intervals.map((i) => (seq[i] === MISSING ? null : values?.[i] ?? 0));
        return [...shown, shown[shown.length - 1] ?? null];
      },
    };
  }

  /** Returns the drawn interval at a time; null if it is not known, or before the first. */
  at(by: LayerBy, seconds: number, begin: number, end: number, width: number): LayerState | null {
    const depth = this.depth(begin, end, width);
    const level = this.levels[depth];
    const step = this.step(depth);
    const i = Math.max(0, Math.min(level.seq.length - 1, Math.floor((seconds - this.begin) / step)));
    if (level.seq[i] === MISSING || seconds < this.begin) return null;
    return {
      begin: this.begin + i * step, end: Math.min(this.begin + (i + 1) * step, this.end), seq: level.seq[i], total: level.total[i],
      of: (layer) => {
        const values = level.layers[by][layer];
        return values ? { peak: values.peak[i], least: values.least[i], most: values.most[i] } : { peak: 0, least: 0, most: 0 };
      },
    };
  }

  private depth(begin: number, end: number, width: number): number {
    const intervals = (end - begin) / this.step(0);
    return Math.min(this.levels.length - 1, Math.max(0, Math.ceil(Math.log2(intervals / width))));
  }

  private step(depth: number): number {
    return ((this.end - this.begin) / this.points) * 2 ** depth;
  }
}

function halve(level: Level): Level {
  const count = Math.ceil(level.seq.length / 2);
  const pairs = Array.from({ length: count }, (_, i) => {
    const second = Math.min(2 * i + 1, level.seq.length - 1);
    return [level.seq[2 * i] === MISSING ? second : 2 * i, second]; // only intervals at the beginning are unknown
  });
  const chosen = pairs.map(([a, b]) => (level.total[b] > level.total[a] ? b : a));
  const pick = (values: Float64Array) => Float64Array.from(chosen, (i) => values[i]);
  const halveLayer = (layer: LayerValues | null) => layer && {
    peak: pick(layer.peak),
    least: Float64Array.from(pairs, ([a, b]) => Math.min(layer.least[a], layer.least[b])),
    most: Float64Array.from(pairs, ([a, b]) => Math.max(layer.most[a], layer.most[b])),
  };
  return {
    seq: pick(level.seq), total: pick(level.total),
    layers: { role: level.layers.role.map(halveLayer), line: level.layers.line.map(halveLayer) },
  };
}
