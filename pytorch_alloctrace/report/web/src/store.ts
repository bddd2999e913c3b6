// State of the page, which all views follow.

import type { Live } from "./live";
import type { LayerBy } from "./layers";
import type { Grouping } from "./manifest";

export type GroupBy = "line" | "function" | "file" | Grouping;
export type ColorBy = "site" | "state" | "age" | "stream";

export interface State {
  device: number;
  cursor: number;
  /** Snapshot that the cursor is compared with. */
  other: number | null;
  /** Visible part of the run, in seconds. */
  zoom: [number, number];
  /** Highlighted line of code. */
  site: number | null;
  query: string;
  groupBy: GroupBy;
  allFrames: boolean;
  colorBy: ColorBy;
  timeline: "levels" | LayerBy;
  /** True if the timeline includes the memory used outside PyTorch. */
  outside: boolean;
}

type Listener = (state: State, changed: Set<keyof State>) => void;

export class Store {
  private readonly listeners: Listener[] = [];

  /** Requests snapshots that the page lacks; null if the page is a file. */
  live: Live | null = null;

  constructor(public state: State) {}

  set(change: Partial<State>): void {
    const changed = new Set<keyof State>();
    for (const key of Object.keys(change) as (keyof State)[]) {
      if (JSON.stringify(this.state[key]) !== JSON.stringify(change[key])) changed.add(key);
    }
    if (!changed.size) return;
    this.state = { ...this.state, ...change };
    for (const listener of this.listeners) listener(this.state, changed);
  }

  /** Calls `draw` now, and whenever one of the keys changes. */
  follow(keys: (keyof State)[], draw: (state: State) => void): void {
    this.listeners.push((state, changed) => {
      if (keys.some((key) => changed.has(key))) draw(state);
    });
    draw(this.state);
  }
}
