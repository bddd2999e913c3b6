// Model of the page: stacks, sites, snapshots, and the curves, holdings and maps of each device.

import { Columns, type ColumnRef } from "./columns";
import { Curves } from "./curves";
import { Layers } from "./layers";
import { DeviceMaps } from "./maps";
import type { DeviceData, FrameColumn, LayersData, Manifest, SnapshotManifest, SiteRow } from "./manifest";
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

export interface Snapshot {
  index: number;
  /** Event after which the state is shown. */
  seq: number;
  /** Seconds since the recording began. */
  time: number;
  step: number | null;
  reasons: string[];
}

/** Memory that a stack holds at a snapshot. `frame` is the innermost frame; -1 for stacks that the page does not name. */
export interface Holding {
  frame: number;
  bytes: number;
  blocks: number;
  backward: number;
}

/** Site of stacks that the page does not name. */
export const OTHER_SITE = -1;

export class Model {
  readonly seconds: number;
  readonly sites: Site[];
  frames: Record<FrameColumn, Float64Array>;
  readonly snapshots: Snapshot[];
  /** Requested snapshots, numbered after the snapshots of the page. */
  private readonly requested: Snapshot[] = [];
  private names: Names | null = null;
  readonly steps: { number: Float64Array; seq: Float64Array; time: Float64Array };
  readonly devices: Device[];

  constructor(readonly manifest: Manifest, readonly columns: Columns) {
    const read = (ref: ColumnRef) => columns.read(ref);
    this.seconds = manifest.duration / 1e9;
    this.sites = manifest.stacks.sites.map((row, id) => siteOf(row, manifest.texts, id));
    const frames = manifest.stacks.frames;
    this.frames = Object.fromEntries(Object.entries(frames).map(([name, ref]) => [name, read(ref)])) as Record<FrameColumn, Float64Array>;
    const { seq, time, step, reasons } = manifest.snapshots;
    const [seqs, times, steps] = [read(seq), read(time), read(step)];
    this.snapshots = reasons.map((snapshotReasons, index) => ({
      index, seq: seqs[index], time: times[index] / 1e9, step: steps[index] < 0 ? null : steps[index], reasons: snapshotReasons,
    }));
    const positions = manifest.positions.steps;
    this.steps = { number: read(positions.number), seq: read(positions.seq), time: read(positions.time) };
    this.devices = manifest.devices.map((data, index) => new Device(this, data, index));
  }

  snapshot(index: number): Snapshot {
    return this.snapshots[index] ?? this.requested[index - this.snapshots.length];
  }

  /** Returns the number of the requested snapshot of an event, or null. */
  extraSnapshot(seq: number): number | null {
    return this.requested.find((snapshot) => snapshot.seq === seq)?.index ?? null;
  }

  addSnapshot(data: SnapshotManifest, columns: Columns): number {
    const existing = this.extraSnapshot(data.seq);
    if (existing !== null) return existing;
    this.names ??= new Names(this);
    const frames = this.names.translate(data, columns);
    const index = this.snapshots.length + this.requested.length;
    const reasons = this.snapshots.find((snapshot) => snapshot.seq === data.seq)?.reasons ?? [];
    this.requested.push({ index, seq: data.seq, time: data.time / 1e9, step: data.step, reasons });
    for (const device of this.devices) {
      const deviceData = data.devices.find((candidate) => candidate.device === device.name);
      if (deviceData) device.add(index, deviceData, columns, frames);
    }
    return index;
  }

  /** Returns the number of the nearest snapshot of the page. */
  onPage(index: number): number {
    return index < this.snapshots.length ? index : this.snapshotOfEvent(this.snapshot(index).seq);
  }

  text(number: number): string {
    return this.manifest.texts[number] ?? "";
  }

  siteOfFrame(frame: number): number {
    return frame < 0 ? OTHER_SITE : this.frames.site[frame];
  }

  site(id: number | null): Site {
    return (id !== null && this.sites[id]) || { id: OTHER_SITE, label: "other lines, which hold little", file: "", line: 0, func: "", source: "", user: false };
  }

  /** Returns the step of an event. The event that ends a step belongs to this step. */
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

  nearestSnapshot(seconds: number): number {
    let nearest = 0;
    for (const snapshot of this.snapshots) {
      if (Math.abs(snapshot.time - seconds) < Math.abs(this.snapshots[nearest].time - seconds)) nearest = snapshot.index;
    }
    return nearest;
  }

  snapshotOfEvent(seq: number): number {
    let nearest = 0;
    for (const snapshot of this.snapshots) {
      if (Math.abs(snapshot.seq - seq) < Math.abs(this.snapshots[nearest].seq - seq)) nearest = snapshot.index;
    }
    return nearest;
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
  private readonly layersOfRun: Layers;
  /** Finer intervals of a part of the run, which a served page requests. */
  private finerLayers: Layers | null = null;
  private readonly runs: Record<"frame" | "bytes" | "blocks" | "backward" | "first" | "length", Float64Array>;
  private readonly totals: { bytes: Float64Array; blocks: Float64Array };
  private sums: Map<number, Float64Array> | null = null;
  private readonly requestedHoldings = new Map<number, Holding[]>();

  constructor(readonly model: Model, readonly data: DeviceData, readonly index: number) {
    this.name = data.device;
    this.curves = new Curves(model.columns, model.manifest.curves.devices[data.device], model.manifest.curves.points, model.seconds);
    this.layersOfRun = new Layers(model.columns, model.manifest.layers, model.manifest.layers.devices[data.device]);
    this.maps = new DeviceMaps(model.columns, data.maps);
    const refs = data.holdings;
    this.runs = Object.fromEntries(Object.entries(refs).map(([name, ref]) => [name, model.columns.read(ref)])) as typeof this.runs;
    const count = model.snapshots.length;
    this.totals = { bytes: new Float64Array(count), blocks: new Float64Array(count) };
    const { bytes, blocks, first, length } = this.runs;
    for (let run = 0; run < bytes.length; run++) {
      addRun(this.totals.bytes, first[run], length[run], bytes[run]);
      addRun(this.totals.blocks, first[run], length[run], blocks[run]);
    }
    sumUp(this.totals.bytes);
    sumUp(this.totals.blocks);
  }

  add(snapshot: number, data: SnapshotManifest["devices"][number], columns: Columns, frames: number[]): void {
    const refs = data.holdings;
    const [frame, bytes, blocks, backward] = (["frame", "bytes", "blocks", "backward"] as const).map((name) => columns.read(refs[name]));
    this.requestedHoldings.set(snapshot, [...frame].map((number, i) => ({ frame: number < 0 ? -1 : frames[number], bytes: bytes[i], blocks: blocks[i], backward: backward[i] })));
    this.maps.add(snapshot, columns, data.maps, frames);
  }

  /** Returns the finest layers of a part of the run. */
  layers(begin: number, end: number): Layers {
    return this.finerLayers?.covers(begin, end) ? this.finerLayers : this.layersOfRun;
  }

  refineLayers(columns: Columns, data: LayersData): void {
    this.finerLayers = new Layers(columns, data, data.devices[this.name]);
  }

  holdings(snapshot: number): Holding[] {
    const requested = this.requestedHoldings.get(snapshot);
    if (requested) return requested;
    const { frame, bytes, blocks, backward, first, length } = this.runs;
    const holdings: Holding[] = [];
    for (let run = 0; run < frame.length; run++) {
      if (first[run] > snapshot) break; // runs are ordered by `first`
      if (first[run] + length[run] >= snapshot) {
        holdings.push({ frame: frame[run], bytes: bytes[run], blocks: blocks[run], backward: backward[run] });
      }
    }
    return holdings;
  }

  /** Returns the requested bytes that are live at a snapshot. */
  bytesAt(snapshot: number): number {
    return this.totals.bytes[snapshot] ?? sum(this.holdings(snapshot).map((holding) => holding.bytes));
  }

  blocksAt(snapshot: number): number {
    return this.totals.blocks[snapshot] ?? sum(this.holdings(snapshot).map((holding) => holding.blocks));
  }

  bytesBySite(): Map<number, Float64Array> {
    if (this.sums) return this.sums;
    const { frame, bytes, first, length } = this.runs;
    const count = this.model.snapshots.length;
    const sums = new Map<number, Float64Array>();
    for (let run = 0; run < frame.length; run++) {
      const site = this.model.siteOfFrame(frame[run]);
      let siteBytes = sums.get(site);
      if (!siteBytes) sums.set(site, (siteBytes = new Float64Array(count)));
      addRun(siteBytes, first[run], length[run], bytes[run]);
    }
    for (const siteBytes of sums.values()) sumUp(siteBytes);
    return (this.sums = sums);
  }
}

function sum(values: number[]): number {
  return values.reduce((a, b) => a + b, 0);
}

/** Adds a run to the changes from snapshot to snapshot, which `sumUp` turns into totals. */
function addRun(changes: Float64Array, first: number, length: number, amount: number): void {
  changes[first] += amount;
  if (first + length + 1 < changes.length) changes[first + length + 1] -= amount;
}

function sumUp(changes: Float64Array): void {
  for (let i = 1; i < changes.length; i++) changes[i] += changes[i - 1];
}
