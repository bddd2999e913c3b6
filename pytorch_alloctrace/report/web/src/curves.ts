// Memory of a device over time, at several resolutions. Each level merges pairs of intervals of the previous level and
// keeps their minimum and maximum, so that every zoom shows every peak.

import type { Columns } from "./columns";
import { MEASURES, type DeviceCurves, type Measure } from "./manifest";

interface Level {
  last: Float64Array;
  least: Float64Array;
  most: Float64Array;
}

export interface Slice {
  /** Begin of each interval, and end of the last interval, in seconds. */
  times: number[];
  least: number[];
  most: number[];
  last: number[];
}

export class Curves {
  readonly measures: Set<Measure>;
  readonly capacity: number | null;
  readonly outside: Float64Array | null;
  readonly blocks: Float64Array;
  readonly segmentEvents: { time: Float64Array; bytes: Float64Array };
  private readonly levels = new Map<Measure, Level[]>();

  constructor(
    private readonly columns: Columns, private readonly data: DeviceCurves, readonly points: number, readonly seconds: number,
  ) {
    this.measures = new Set(MEASURES.filter((measure) => data.measures[measure]));
    this.capacity = data.capacity;
    this.outside = data.outside ? columns.read(data.outside) : null;
    this.blocks = columns.read(data.blocks);
    const events = data.segment_events;
    this.segmentEvents = { time: columns.read(events.time), bytes: columns.read(events.bytes) };
  }

  interval(seconds: number): number {
    return Math.max(0, Math.min(this.points - 1, Math.floor((seconds / this.seconds) * this.points)));
  }

  /** Returns a measure at the end of an interval, and its minimum and maximum there; null if not reported. */
  at(measure: Measure, interval: number): { last: number; least: number; most: number } | null {
    const level = this.levelsOf(measure)?.[0];
    return level ? { last: level.last[interval], least: level.least[interval], most: level.most[interval] } : null;
  }

  /** Returns a part of a curve in about `width` intervals. */
  slice(measure: Measure, begin: number, end: number, width: number): Slice | null {
    const levels = this.levelsOf(measure);
    if (!levels) return null;
    const intervals = ((end - begin) / this.seconds) * this.points;
    const depth = Math.min(levels.length - 1, Math.max(0, Math.ceil(Math.log2(intervals / width))));
    const { last, least, most } = levels[depth];
    const step = (this.seconds / this.points) * 2 ** depth;
    const first = Math.max(0, Math.floor(begin / step));
    const endIndex = Math.min(last.length, Math.ceil(end / step) + 1);
    const slice: Slice = { times: [], least: [], most: [], last: [] };
    for (let i = first; i < endIndex; i++) {
      slice.times.push(i * step);
      slice.least.push(least[i]);
      slice.most.push(most[i]);
      slice.last.push(last[i]);
    }
    if (endIndex === last.length && endIndex > first) {
      slice.times.push(this.seconds);
      slice.least.push(last[endIndex - 1]);
      slice.most.push(last[endIndex - 1]);
      slice.last.push(last[endIndex - 1]);
    }
    return slice;
  }

  /** Returns the maximum of a measure; null if the allocator does not report it. */
  highest(measure: Measure): number | null {
    const levels = this.levelsOf(measure);
    return levels ? levels[0].most.reduce((a, b) => Math.max(a, b), 0) : null;
  }

  /** Returns the run without a long start-up, which ends at a sixteenth of the peak or at the first step's end. */
  usedPart(firstStepEndSeconds: number | null): [number, number] {
    const measure = this.measures.has("reserved") ? "reserved" : "allocated";
    const maxima = this.levelsOf(measure)?.[0].most;
    const highest = this.highest(measure) ?? 0;
    const first = maxima ? maxima.findIndex((bytes) => bytes * 16 > highest) : 0;
    const begin = Math.min((Math.max(first, 0) / this.points) * this.seconds, firstStepEndSeconds ?? this.seconds);
    const margin = (this.seconds - begin) / 30;
    return begin > this.seconds / 8 ? [begin - margin, this.seconds] : [0, this.seconds];
  }

  private levelsOf(measure: Measure): Level[] | null {
    const cached = this.levels.get(measure);
    if (cached) return cached;
    const refs = this.data.measures[measure];
    if (!refs) return null;
    const { columns } = this;
    const levels: Level[] = [{ last: columns.read(refs.last), least: columns.read(refs.least), most: columns.read(refs.most) }];
    while (levels[levels.length - 1].last.length > 200) levels.push(halve(levels[levels.length - 1]));
    this.levels.set(measure, levels);
    return levels;
  }
}

function halve(level: Level): Level {
  const count = Math.ceil(level.last.length / 2);
  const merged: Level = { last: new Float64Array(count), least: new Float64Array(count), most: new Float64Array(count) };
  for (let i = 0; i < count; i++) {
    const [a, b] = [2 * i, Math.min(2 * i + 1, level.last.length - 1)];
    merged.last[i] = level.last[b];
    merged.least[i] = Math.min(level.least[a], level.least[b]);
    merged.most[i] = Math.max(level.most[a], level.most[b]);
  }
  return merged;
}
