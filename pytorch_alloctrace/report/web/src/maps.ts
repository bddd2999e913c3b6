// The segments and blocks of a device, at the moments that have a map.

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
  /** It keeps its mostly free segment from being returned. */
  pins: boolean;
  /** -1: free, or a stack that the page does not name. */
  frame: number;
  /** The event of its birth; null: before the recording. */
  birth: number | null;
  /** When it was born, as a share of the run. */
  born: number | null;
}

const TIMES = 1 << 16;
const PINNER = 4;

export class DeviceMaps {
  readonly moments: number[];
  private readonly columns = new Map<string, Float64Array>();
  private readonly extra = new Map<number, DeviceMaps>();
  private cache: { moment: number; segments: Segment[] } | null = null;

  constructor(private readonly reader: Columns, private readonly data: MapData, private readonly frames: number[] | null = null) {
    this.moments = data.moments;
  }

  /** Keeps the map of a moment that the page did not have; `frames`: the numbers that its frames have here. */
  add(moment: number, reader: Columns, data: MapData, frames: number[]): void {
    this.extra.set(moment, new DeviceMaps(reader, data, frames));
  }

  /** The moment with a map that is nearest to a moment. */
  nearest(moment: number): number | null {
    if (this.extra.has(moment)) return moment;
    let best: number | null = null;
    for (const one of this.moments) if (best === null || Math.abs(one - moment) < Math.abs(best - moment)) best = one;
    return best;
  }

  has(moment: number): boolean {
    return this.extra.has(moment) || this.moments.includes(moment);
  }

  leftOut(moment: number): number {
    return this.extra.get(moment)?.leftOut(0) ?? this.data.left_out[moment] ?? 0;
  }

  fragmentation(moment: number): FragmentationData | null {
    const own = this.extra.get(moment);
    return own ? own.fragmentation(0) : this.data.fragmentation[moment] ?? null;
  }

  /** The ways in which memory is told apart besides lines. */
  get groupings(): Grouping[] {
    return Object.keys(this.data.groups) as Grouping[];
  }

  groups(by: Grouping, moment: number): [string, number, number][] {
    const own = this.extra.get(moment);
    return own ? own.groups(by, 0) : this.data.groups[by]?.[moment] ?? [];
  }

  /** The segments at a moment that has a map, by address, each with its blocks. */
  segments(moment: number): Segment[] {
    const own = this.extra.get(moment);
    if (own) return own.segments(0);
    if (this.cache?.moment === moment) return this.cache.segments;
    const number = this.moments.indexOf(moment);
    const refs = this.data.segments;
    const column = (name: keyof MapData["segments"]) => this.read(`segment ${name}`, refs[name]);
    const [first, length] = [column("first"), column("length")];
    const found: Segment[] = [];
    for (let i = 0; i < first.length && first[i] <= number; i++) {
      if (first[i] + length[i] < number) continue;
      found.push({
        address: column("address")[i], size: column("size")[i], stream: column("stream")[i],
        pool: this.data.pools[column("pool")[i]] ?? "", large: column("large")[i] === 1,
        expandable: column("expandable")[i] === 1, blocks: [],
      });
    }
    found.sort((a, b) => a.address - b.address);
    const byAddress = new Map(found.map((segment) => [segment.address, segment]));
    for (const block of this.blocks(number)) byAddress.get(block.segment)?.blocks.push(block);
    for (const segment of found) segment.blocks.sort((a, b) => a.address - b.address);
    this.cache = { moment, segments: found };
    return found;
  }

  private *blocks(number: number): Iterable<Block> {
    const refs = this.data.blocks;
    const column = (name: BlockColumn) => this.read(`block ${name}`, refs[name]);
    const [first, length, segment, address, size] = (["first", "length", "segment", "address", "size"] as const).map(column);
    const [requested, state, frame, birth, born] = (["requested", "state", "frame", "birth", "birth_time"] as const).map(column);
    for (let i = 0; i < first.length && first[i] <= number; i++) {
      if (first[i] + length[i] < number) continue;
      yield {
        segment: segment[i], address: address[i], size: size[i], requested: size[i] + requested[i],
        state: STATES[state[i] % PINNER], pins: state[i] >= PINNER, frame: this.frames && frame[i] >= 0 ? this.frames[frame[i]] : frame[i],
        birth: birth[i] === MISSING ? null : birth[i], born: born[i] === MISSING ? null : born[i] / TIMES,
      };
    }
  }

  private read(name: string, ref: [number, number, number]): Float64Array {
    let known = this.columns.get(name);
    if (!known) this.columns.set(name, (known = this.reader.read(ref)));
    return known;
  }
}
