// Types of the page's JSON, as report/page/data.py writes it.

import type { ColumnRef } from "./columns";

export const VERSION = 6;

export interface Manifest {
  version: number;
  redacted: boolean;
  /** True if `alloctrace serve` serves the page and answers requests for events. */
  live: boolean;
  header: Header;
  findings: Finding[];
  seconds: number;
  /** Length of the recording in nanoseconds. All times count from its beginning. */
  duration: number;
  snapshots: { seq: ColumnRef; time: ColumnRef; step: ColumnRef; reasons: string[][] };
  positions: Positions;
  curves: { points: number; devices: Record<string, DeviceCurves> };
  /** Names of the roles, in the order of their layers. */
  roles: string[];
  layers: LayersData;
  devices: DeviceData[];
  devices_left_out: number;
  failed_allocations: FailedAllocation[];
  earlier_failures: number;
  what_if: Record<string, WhatIf | NotTried>;
  stacks: { frames: Record<FrameColumn, ColumnRef>; sites: SiteRow[] };
  texts: string[];
}

/** A snapshot that a served page requests. Its stacks and texts are numbered separately from the page's. */
export interface SnapshotManifest {
  version: number;
  seq: number;
  time: number;
  step: number | null;
  devices: Pick<DeviceData, "device" | "holdings" | "maps">[];
  stacks: Manifest["stacks"];
  texts: string[];
}

export type FrameColumn = "parent" | "function" | "file" | "line" | "source" | "user" | "site";
/** `label`, `file`, `func` and `source` are numbers of texts; `user` is 1 for user code. */
export type SiteRow = [label: number, file: number, line: number, func: number, source: number, user: number];

export interface Header {
  title: string;
  command: string;
  facts: [string, string][];
  begin: number;
  events: number;
  /** Number of the last event plus 1. */
  end_seq: number;
  file_bytes: number;
  steps: number;
  whole: boolean;
  integrity: string;
  recorded_devices: string[];
}

export interface Finding {
  kind: string;
  label: string;
  title: string;
  sentences: string[];
  device: string;
  bytes: number;
  confidence: number | null;
  site: number | null;
  source: string | null;
  seq: number | null;
  leak?: Leak;
}

export interface Leak {
  leak_kind: string;
  unit: string;
  bytes_per_unit: number;
  blocks: number;
  allocated_bytes_at_end: number;
  forecast_seconds: number | null;
  live_over_run: number[];
  path: [string, string][];
  sites: [site: number, rate: number, bytes: number, blocks: number][];
  births: { unit: "step" | "ns"; first: number; width: number; bytes: number[] };
}

export interface Positions {
  steps: { number: ColumnRef; seq: ColumnRef; time: ColumnRef };
  marks: [name: string, seq: number, time: number][];
  regions: [name: string, begin: number, end: number][];
  marks_left_out: number;
}

export const MEASURES = ["requested", "allocated", "active", "reserved", "releasable", "stranded", "largest_free"] as const;
export type Measure = (typeof MEASURES)[number];

export interface DeviceCurves {
  measures: Partial<Record<Measure, { last: ColumnRef; least: ColumnRef; most: ColumnRef }>>;
  outside: ColumnRef | null;
  blocks: ColumnRef;
  segment_events: { time: ColumnRef; bytes: ColumnRef; left_out: number };
  capacity: number | null;
}

/** Memory by role and by line in `points` equal intervals, from `begin` to `end` in nanoseconds since the recording began. */
export interface LayersData {
  version?: number;
  points: number;
  begin: number;
  end: number;
  devices: Record<string, DeviceLayers>;
}

/** Bytes in the state with the most memory, distance of the maximum from them, and minimum; null if always 0. */
type LayerRefs = [peak: ColumnRef, above: ColumnRef, least: ColumnRef] | null;

export interface DeviceLayers {
  /** Event of each interval's state. */
  seq: ColumnRef;
  roles: LayerRefs[];
  /** Of each line of `DeviceData.lines`, and of all other lines. */
  lines: LayerRefs[];
}

export interface DeviceData {
  device: string;
  capacity: number | null;
  name: string;
  holdings: Record<"frame" | "bytes" | "blocks" | "backward" | "first" | "length", ColumnRef>;
  maps: MapData;
  /** Sites of the lines that have a layer. */
  lines: number[];
  sites: { columns: string[]; rows: (number | null)[][]; left_out: number };
  stacks_put_together: number;
}

/** Phase of the step, allocating module, role of the memory. A trace may lack any of them. */
export type Grouping = "phase" | "module" | "role";

export interface MapData {
  snapshots: number[];
  left_out: Record<string, number>;
  fragmentation: Record<string, FragmentationData>;
  groups: Partial<Record<Grouping, Record<string, [name: string, bytes: number, blocks: number][]>>>;
  pools: string[];
  segments: Record<"address" | "size" | "stream" | "pool" | "large" | "expandable" | "first" | "length", ColumnRef>;
  blocks: Record<BlockColumn, ColumnRef>;
}
export type BlockColumn =
  | "segment" | "address" | "size" | "requested" | "state" | "frame" | "birth" | "birth_time" | "first" | "length";

export interface FragmentationData {
  reserved: number;
  active: number;
  free: number;
  releasable: number;
  stranded: number;
  largest_free: number;
  external: number;
  pinners: [site: number, stranded: number, blocks: number, bytes: number][];
  pieces: [from: number, pieces: number, bytes: number][];
  pools: [pool: [number, number], stream: number, type: string, segments: number, total: number, active: number,
    free: number, largest: number][];
}

export interface FailedAllocation {
  seq: number;
  device: string;
  step: number | null;
  verdict: string;
  requested_bytes: number;
  segment_bytes: number;
  largest_free_bytes: number;
  device_free_bytes: number;
  device_bytes: number | null;
  reserved_bytes: number;
  allocated_bytes: number;
  free_here_bytes: number;
  free_elsewhere_bytes: number;
  outside_bytes: number | null;
  outcome: string;
  title: string;
  time: number;
  site: number;
  source: string | null;
  sentences: string[];
  top: [site: number, bytes: number, blocks: number][];
}

/** Device for which no setting was tried. */
export interface NotTried {
  reason: string;
}

export interface WhatIf {
  reason: "";
  check: string;
  is_exact: boolean;
  /** GPU of the simulations, and what the trace lacks, in sentences. */
  conditions: string[];
  /** The recorded setting, then the others, the best first. */
  outcomes: Outcome[];
  gpus_tried: boolean;
  left_out: string[];
  notes: string[];
}

export interface Outcome {
  setting: string;
  fits: boolean;
  peak_reserved_bytes: [least: number, most: number];
  device_used_bytes: number;
  retries: [least: number, most: number];
  orders: number;
  failing_orders: number;
  failure: { seq: number; requested: number; reserved: number; site: number } | null;
  /** Number of allocations that failed in the recorded run and would have been served. */
  served: number;
  failed_again: number;
  smallest: { name: string; memory: number; about: string } | null;
}
