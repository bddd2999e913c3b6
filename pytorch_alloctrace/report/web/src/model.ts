// The trace as the page knows it: stacks, sites, moments, and for each device its curves and what it held.

import { Columns, type ColumnRef } from "./columns";
import { Curves } from "./curves";
import { DeviceMaps } from "./maps";
import type { DeviceData, FrameColumn, Manifest } from "./manifest";

export interface Site {
  id: number;
  /** "train.py:41 in train". */
  label: string;
  file: string;
  line: number;
  func: string;
  source: string;
  user: boolean;
}

export interface Moment {
  index: number;
  /** The state is the one after this event. */
  seq: number;
  /** Seconds since the recording began. */
  time: number;
  step: number | null;
  reasons: string[];
}

/** What one stack holds at a moment; `frame` is its innermost frame, -1 for stacks that the page does not name. */
export interface Holding {
  frame: number;
  bytes: number;
  blocks: number;
  backward: number;
}

/** The site of memory whose stacks the page does not name. */
export const OTHER_SITE = -1;

export class Model {
  readonly seconds: number;
  readonly sites: Site[];
  readonly frames: Record<FrameColumn, Float64Array>;
  readonly moments: Moment[];
  readonly steps: { number: Float64Array; seq: Float64Array; time: Float64Array };
  readonly devices: Device[];

  constructor(readonly manifest: Manifest, readonly columns: Columns) {
    const read = (ref: ColumnRef) => columns.read(ref);
    const text = (number: number) => manifest.texts[number] ?? "";
    this.seconds = manifest.duration / 1e9;
    this.sites = manifest.stacks.sites.map(([label, file, line, func, source, user], id) => ({
      id, label: text(label), file: text(file), line, func: text(func), source: text(source), user: user === 1,
    }));
    const frames = manifest.stacks.frames;
    this.frames = Object.fromEntries(Object.entries(frames).map(([name, ref]) => [name, read(ref)])) as Record<FrameColumn, Float64Array>;
    const { seq, time, step, reasons } = manifest.moments;
    const [seqs, times, steps] = [read(seq), read(time), read(step)];
    this.moments = reasons.map((why, index) => ({
      index, seq: seqs[index], time: times[index] / 1e9, step: steps[index] < 0 ? null : steps[index], reasons: why,
    }));
    const positions = manifest.positions.steps;
    this.steps = { number: read(positions.number), seq: read(positions.seq), time: read(positions.time) };
    this.devices = manifest.devices.map((data, index) => new Device(this, data, index));
  }

  text(number: number): string {
    return this.manifest.texts[number] ?? "";
  }

  siteOfFrame(frame: number): number {
    return frame < 0 ? OTHER_SITE : this.frames.site[frame];
  }

  site(id: number | null): Site {
    return (id !== null && this.sites[id]) || { id: OTHER_SITE, label: "other lines, which hold least", file: "", line: 0, func: "", source: "", user: false };
  }

  /** The step that an event belongs to; the event that ends a step is its last. */
  stepOf(seq: number): number | null {
    const { seq: ends, number } = this.steps;
    if (!ends.length) return null;
    let low = 0;
    let high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ends[middle] < seq) low = middle + 1;
      else high = middle;
    }
    return low < ends.length ? number[low] : number[ends.length - 1] + 1;
  }

  nearestMoment(seconds: number): number {
    let best = 0;
    for (const moment of this.moments) {
      if (Math.abs(moment.time - seconds) < Math.abs(this.moments[best].time - seconds)) best = moment.index;
    }
    return best;
  }

  momentOfEvent(seq: number): number {
    let best = 0;
    for (const moment of this.moments) {
      if (Math.abs(moment.seq - seq) < Math.abs(this.moments[best].seq - seq)) best = moment.index;
    }
    return best;
  }
}

export class Device {
  readonly name: string;
  readonly curves: Curves;
  readonly maps: DeviceMaps;
  private readonly runs: Record<"frame" | "bytes" | "blocks" | "backward" | "first" | "length", Float64Array>;
  private readonly totals: { bytes: Float64Array; blocks: Float64Array };
  private sums: Map<number, Float64Array> | null = null;

  constructor(readonly model: Model, readonly data: DeviceData, readonly index: number) {
    this.name = data.device;
    this.curves = new Curves(model.columns, model.manifest.curves.devices[data.device], model.manifest.curves.points, model.seconds);
    this.maps = new DeviceMaps(model.columns, data.maps);
    const refs = data.holdings;
    this.runs = Object.fromEntries(Object.entries(refs).map(([name, ref]) => [name, model.columns.read(ref)])) as typeof this.runs;
    const count = model.moments.length;
    this.totals = { bytes: new Float64Array(count), blocks: new Float64Array(count) };
    const { bytes, blocks, first, length } = this.runs;
    for (let run = 0; run < bytes.length; run++) {
      addRun(this.totals.bytes, first[run], length[run], bytes[run]);
      addRun(this.totals.blocks, first[run], length[run], blocks[run]);
    }
    sumUp(this.totals.bytes);
    sumUp(this.totals.blocks);
  }

  /** What each stack holds at a moment. */
  holdings(moment: number): Holding[] {
    const { frame, bytes, blocks, backward, first, length } = this.runs;
    const found: Holding[] = [];
    for (let run = 0; run < frame.length; run++) {
      if (first[run] > moment) break; // they are ordered by it
      if (first[run] + length[run] >= moment) {
        found.push({ frame: frame[run], bytes: bytes[run], blocks: blocks[run], backward: backward[run] });
      }
    }
    return found;
  }

  /** Requested bytes that are live at a moment. */
  bytesAt(moment: number): number {
    return this.totals.bytes[moment] ?? 0;
  }

  blocksAt(moment: number): number {
    return this.totals.blocks[moment] ?? 0;
  }

  /** The bytes of each site, by moment. */
  bytesBySite(): Map<number, Float64Array> {
    if (this.sums) return this.sums;
    const { frame, bytes, first, length } = this.runs;
    const count = this.model.moments.length;
    const sums = new Map<number, Float64Array>();
    for (let run = 0; run < frame.length; run++) {
      const site = this.model.siteOfFrame(frame[run]);
      let own = sums.get(site);
      if (!own) sums.set(site, (own = new Float64Array(count)));
      addRun(own, first[run], length[run], bytes[run]);
    }
    for (const own of sums.values()) sumUp(own);
    return (this.sums = sums);
  }
}

/** Notes where an amount begins and ends; `sumUp` makes of all notes what there is at each moment. */
function addRun(changes: Float64Array, first: number, length: number, amount: number): void {
  changes[first] += amount;
  if (first + length + 1 < changes.length) changes[first + length + 1] -= amount;
}

function sumUp(changes: Float64Array): void {
  for (let i = 1; i < changes.length; i++) changes[i] += changes[i - 1];
}
