// The sums of a device over time, at several resolutions: each level has half as many intervals as the one before, with
// the lowest and highest of both, so that no peak is lost at any zoom.

import type { Columns } from "./columns";
import { MEASURES, type DeviceCurves, type Measure } from "./manifest";

interface Level {
  last: Float64Array;
  least: Float64Array;
  most: Float64Array;
}

export interface Slice {
  /** When each interval begins, in seconds; and the end of the last. */
  times: number[];
  least: number[];
  most: number[];
  last: number[];
}

export class Curves {
  readonly known: Set<Measure>;
  readonly capacity: number | null;
  readonly outside: Float64Array | null;
  readonly blocks: Float64Array;
  readonly segmentEvents: { time: Float64Array; bytes: Float64Array };
  private readonly levels = new Map<Measure, Level[]>();

  constructor(
    private readonly columns: Columns, private readonly data: DeviceCurves, readonly points: number, readonly seconds: number,
  ) {
    this.known = new Set(MEASURES.filter((measure) => data.measures[measure]));
    this.capacity = data.capacity;
    this.outside = data.outside ? columns.read(data.outside) : null;
    this.blocks = columns.read(data.blocks);
    const events = data.segment_events;
    this.segmentEvents = { time: columns.read(events.time), bytes: columns.read(events.bytes) };
  }

  /** The interval that a time lies in. */
  interval(seconds: number): number {
    return Math.max(0, Math.min(this.points - 1, Math.floor((seconds / this.seconds) * this.points)));
  }

  /** A measure in an interval: at its end, its lowest and its highest. */
  at(measure: Measure, interval: number): { last: number; least: number; most: number } | null {
    const level = this.levelsOf(measure)?.[0];
    return level ? { last: level.last[interval], least: level.least[interval], most: level.most[interval] } : null;
  }

  /** A part of a curve in about `width` intervals. */
  slice(measure: Measure, begin: number, end: number, width: number): Slice | null {
    const levels = this.levelsOf(measure);
    if (!levels) return null;
    const wanted = ((end - begin) / this.seconds) * this.points;
    const depth = Math.min(levels.length - 1, Math.max(0, Math.ceil(Math.log2(wanted / width))));
    const { last, least, most } = levels[depth];
    const step = (this.seconds / this.points) * 2 ** depth;
    const first = Math.max(0, Math.floor(begin / step));
    const after = Math.min(last.length, Math.ceil(end / step) + 1);
    const made: Slice = { times: [], least: [], most: [], last: [] };
    for (let i = first; i < after; i++) {
      made.times.push(i * step);
      made.least.push(least[i]);
      made.most.push(most[i]);
      made.last.push(last[i]);
    }
    if (after === last.length && after > first) {
      made.times.push(this.seconds);
      made.least.push(last[after - 1]);
      made.most.push(last[after - 1]);
      made.last.push(last[after - 1]);
    }
    return made;
  }

  /** The highest of a measure; null where the allocator does not report it. */
  highest(measure: Measure): number | null {
    const levels = this.levelsOf(measure);
    return levels ? levels[0].most.reduce((a, b) => Math.max(a, b), 0) : null;
  }

  /** The part of the run from shortly before the memory was used in earnest, and at the latest from the first step
   * (`firstStep`: when it ended, in seconds): a program may load and compile for long. */
  usedPart(firstStep: number | null): [number, number] {
    const measure = this.known.has("reserved") ? "reserved" : "allocated";
    const held = this.levelsOf(measure)?.[0].most;
    const highest = this.highest(measure) ?? 0;
    const first = held ? held.findIndex((bytes) => bytes * 16 > highest) : 0;
    const begin = Math.min((Math.max(first, 0) / this.points) * this.seconds, firstStep ?? this.seconds);
    const margin = (this.seconds - begin) / 30;
    return begin > this.seconds / 8 ? [begin - margin, this.seconds] : [0, this.seconds];
  }

  private levelsOf(measure: Measure): Level[] | null {
    const known = this.levels.get(measure);
    if (known) return known;
    const refs = this.data.measures[measure];
    if (!refs) return null;
    const last = this.columns.read(refs.last);
    const most = this.columns.read(refs.above).map((above, i) => last[i] + above);
    const least = this.columns.read(refs.below).map((below, i) => last[i] - below);
    const made: Level[] = [{ last, least, most }];
    while (made[made.length - 1].last.length > 200) made.push(halved(made[made.length - 1]));
    this.levels.set(measure, made);
    return made;
  }
}

function halved(level: Level): Level {
  const count = Math.ceil(level.last.length / 2);
  const made = { last: new Float64Array(count), least: new Float64Array(count), most: new Float64Array(count) };
  for (let i = 0; i < count; i++) {
    const [a, b] = [2 * i, Math.min(2 * i + 1, level.last.length - 1)];
    made.last[i] = level.last[b];
    made.least[i] = Math.min(level.least[a], level.least[b]);
    made.most[i] = Math.max(level.most[a], level.most[b]);
  }
  return made;
}
