// The trace as the page knows it: stacks, sites, moments, and for each device its curves and what it held.

import { Columns, type ColumnRef } from "./columns";
import { Curves } from "./curves";
import { DeviceMaps } from "./maps";
import type { DeviceData, FrameColumn, Manifest, MomentManifest, SiteRow } from "./manifest";
import { Names } from "./names";

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
  frames: Record<FrameColumn, Float64Array>;
  /** Those of the page, in their order. */
  readonly moments: Moment[];
  /** Those that were asked for since: their numbers follow. */
  private readonly extra: Moment[] = [];
  private names: Names | null = null;
  readonly steps: { number: Float64Array; seq: Float64Array; time: Float64Array };
  readonly devices: Device[];

  constructor(readonly manifest: Manifest, readonly columns: Columns) {
    const read = (ref: ColumnRef) => columns.read(ref);
    this.seconds = manifest.duration / 1e9;
    this.sites = manifest.stacks.sites.map((row, id) => siteOf(row, manifest.texts, id));
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

  moment(index: number): Moment {
    return this.moments[index] ?? this.extra[index - this.moments.length];
  }

  /** The moment of an event that was asked for; null if none was. */
  extraMoment(seq: number): number | null {
    return this.extra.find((moment) => moment.seq === seq)?.index ?? null;
  }

  /** Takes in a moment that was asked for; returns its number. */
  addMoment(data: MomentManifest, columns: Columns): number {
    const known = this.extraMoment(data.seq);
    if (known !== null) return known;
    this.names ??= new Names(this);
    const frames = this.names.take(data, columns);
    const index = this.moments.length + this.extra.length;
    const reasons = this.moments.find((moment) => moment.seq === data.seq)?.reasons ?? [];
    this.extra.push({ index, seq: data.seq, time: data.time / 1e9, step: data.step, reasons });
    for (const device of this.devices) {
      const own = data.devices.find((one) => one.device === device.name);
      if (own) device.add(index, own, columns, frames);
    }
    return index;
  }

  /** The moment of the page nearest to one, which may be another. */
  onPage(index: number): number {
    return index < this.moments.length ? index : this.momentOfEvent(this.moment(index).seq);
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

export function siteOf([label, file, line, func, source, user]: SiteRow, texts: string[], id: number): Site {
  const text = (number: number) => texts[number] ?? "";
  return { id, label: text(label), file: text(file), line, func: text(func), source: text(source), user: user === 1 };
}

export class Device {
  readonly name: string;
  readonly curves: Curves;
  readonly maps: DeviceMaps;
  private readonly runs: Record<"frame" | "bytes" | "blocks" | "backward" | "first" | "length", Float64Array>;
  private readonly totals: { bytes: Float64Array; blocks: Float64Array };
  private sums: Map<number, Float64Array> | null = null;
  /** Of moments that the page did not have. */
  private readonly extra = new Map<number, Holding[]>();

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

  add(moment: number, data: MomentManifest["devices"][number], columns: Columns, frames: number[]): void {
    const refs = data.holdings;
    const [frame, bytes, blocks, backward] = (["frame", "bytes", "blocks", "backward"] as const).map((name) => columns.read(refs[name]));
    this.extra.set(moment, [...frame].map((one, i) => ({ frame: one < 0 ? -1 : frames[one], bytes: bytes[i], blocks: blocks[i], backward: backward[i] })));
    this.maps.add(moment, columns, data.maps, frames);
  }

  /** What each stack holds at a moment. */
  holdings(moment: number): Holding[] {
    const own = this.extra.get(moment);
    if (own) return own;
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
    return this.totals.bytes[moment] ?? sum(this.holdings(moment).map((one) => one.bytes));
  }

  blocksAt(moment: number): number {
    return this.totals.blocks[moment] ?? sum(this.holdings(moment).map((one) => one.blocks));
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

function sum(values: number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

/** Notes where an amount begins and ends; `sumUp` makes of all notes what there is at each moment. */
function addRun(changes: Float64Array, first: number, length: number, amount: number): void {
  changes[first] += amount;
  if (first + length + 1 < changes.length) changes[first + length + 1] -= amount;
}

function sumUp(changes: Float64Array): void {
  for (let i = 1; i < changes.length; i++) changes[i] += changes[i - 1];
}
