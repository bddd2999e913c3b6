// Segments and blocks of a device, at the snapshots that have a map.

import { MISSING, type Columns } from "./columns";
import type { BlockColumn, FragmentationData, Grouping, MapData } from "./manifest";

export interface Segment {
  address: number;
  size: number;
  stream: number;
  pool: string;
  large: boolean;
  expandable: boolean;
  blocks: Block[];
}

export type State = "active" | "pending" | "free";
const STATES: State[] = ["active", "pending", "free"];

export interface Block {
  segment: number;
  address: number;
  size: number;
  requested: number;
  state: State;
  /** True if the block keeps its mostly free segment from being returned to the driver. */
  pins: boolean;
  /** Innermost frame; -1 for free blocks and for stacks that the page does not name. */
  frame: number;
  /** Event of the allocation; null if before the recording. */
  allocSeq: number | null;
  /** Time of the allocation as a share of the run; null if unknown. */
  allocTime: number | null;
}

const TIME_SCALE = 1 << 16;
const PINNER = 4;

export class DeviceMaps {
  readonly snapshots: number[];
  private readonly columns = new Map<string, Float64Array>();
  private readonly requestedMaps = new Map<number, DeviceMaps>();
  private cache: { snapshot: number; segments: Segment[] } | null = null;

  constructor(private readonly reader: Columns, private readonly data: MapData, private readonly frames: number[] | null = null) {
    this.snapshots = data.snapshots;
  }

  /** Adds the map of a requested snapshot. `frames` maps its frame numbers to those of the page. */
  add(snapshot: number, reader: Columns, data: MapData, frames: number[]): void {
    this.requestedMaps.set(snapshot, new DeviceMaps(reader, data, frames));
  }

  /** Returns the nearest snapshot that has a map. */
  nearest(snapshot: number): number | null {
    if (this.requestedMaps.has(snapshot)) return snapshot;
    let nearest: number | null = null;
    for (const mapped of this.snapshots) if (nearest === null || Math.abs(mapped - snapshot) < Math.abs(nearest - snapshot)) nearest = mapped;
    return nearest;
  }

  has(snapshot: number): boolean {
    return this.requestedMaps.has(snapshot) || this.snapshots.includes(snapshot);
  }

  leftOut(snapshot: number): number {
    return this.requestedMaps.get(snapshot)?.leftOut(0) ?? this.data.left_out[snapshot] ?? 0;
  }

  fragmentation(snapshot: number): FragmentationData | null {
    const requestedMap = this.requestedMaps.get(snapshot);
    return requestedMap ? requestedMap.fragmentation(0) : this.data.fragmentation[snapshot] ?? null;
  }

  get groupings(): Grouping[] {
    return Object.keys(this.data.groups) as Grouping[];
  }

  groups(by: Grouping, snapshot: number): [string, number, number][] {
    const requestedMap = this.requestedMaps.get(snapshot);
    return requestedMap ? requestedMap.groups(by, 0) : this.data.groups[by]?.[snapshot] ?? [];
  }

  /** Returns the segments and their blocks at a snapshot that has a map, by address. */
  segments(snapshot: number): Segment[] {
    const requestedMap = this.requestedMaps.get(snapshot);
    if (requestedMap) return requestedMap.segments(0);
    if (this.cache?.snapshot === snapshot) return this.cache.segments;
    const mapIndex = this.snapshots.indexOf(snapshot);
    const refs = this.data.segments;
    const column = (name: keyof MapData["segments"]) => this.read(`segment ${name}`, refs[name]);
    const [first, length] = [column("first"), column("length")];
    const segments: Segment[] = [];
    for (let i = 0; i < first.length && first[i] <= mapIndex; i++) {
      if (first[i] + length[i] < mapIndex) continue;
      segments.push({
        address: column("address")[i], size: column("size")[i], stream: column("stream")[i],
        pool: this.data.pools[column("pool")[i]] ?? "", large: column("large")[i] === 1,
        expandable: column("expandable")[i] === 1, blocks: [],
      });
    }
    segments.sort((a, b) => a.address - b.address);
    const byAddress = new Map(segments.map((segment) => [segment.address, segment]));
    for (const block of this.blocks(mapIndex)) byAddress.get(block.segment)?.blocks.push(block);
    for (const segment of segments) segment.blocks.sort((a, b) => a.address - b.address);
    this.cache = { snapshot, segments };
    return segments;
  }

  private *blocks(mapIndex: number): Iterable<Block> {
    const refs = this.data.blocks;
    const column = (name: BlockColumn) => this.read(`block ${name}`, refs[name]);
    const [first, length, segment, address, size] = (["first", "length", "segment", "address", "size"] as const).map(column);
    const [requested, state, frame, allocSeq, allocTime] = (["requested", "state", "frame", "birth", "birth_time"] as const).map(column);
    for (let i = 0; i < first.length && first[i] <= mapIndex; i++) {
      if (first[i] + length[i] < mapIndex) continue;
      yield {
        segment: segment[i], address: address[i], size: size[i], requested: size[i] + requested[i],
        state: STATES[state[i] % PINNER], pins: state[i] >= PINNER, frame: this.frames && frame[i] >= 0 ? this.frames[frame[i]] : frame[i],
        allocSeq: allocSeq[i] === MISSING ? null : allocSeq[i], allocTime: allocTime[i] === MISSING ? null : allocTime[i] / TIME_SCALE,
      };
    }
  }

  private read(name: string, ref: [number, number, number]): Float64Array {
    let values = this.columns.get(name);
    if (!values) this.columns.set(name, (values = this.reader.read(ref)));
    return values;
  }
}
