// What the reader looks at: all views follow it.

import type { Live } from "./live";
import type { Grouping } from "./manifest";

export type GroupBy = "line" | "function" | "file" | Grouping;
export type ColorBy = "site" | "state" | "age" | "stream";

export interface State {
  device: number;
  /** The moment of the cursor. */
  cursor: number;
  /** The moment that it is compared with. */
  other: number | null;
  /** The part of the run that is drawn, in seconds. */
  zoom: [number, number];
  /** The highlighted line of code. */
  site: number | null;
  query: string;
  groupBy: GroupBy;
  allFrames: boolean;
  colorBy: ColorBy;
  stacked: boolean;
  /** Whether the timeline shows what is used outside PyTorch, too. */
  outside: boolean;
}

type Listener = (state: State, changed: Set<keyof State>) => void;

export class Store {
  private readonly listeners: Listener[] = [];

  /** Who can be asked for moments that the page does not have. */
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

  /** Calls a view now, and whenever one of these has changed. */
  follow(keys: (keyof State)[], draw: (state: State) => void): void {
    this.listeners.push((state, changed) => {
      if (keys.some((key) => changed.has(key))) draw(state);
    });
    draw(this.state);
  }
}
