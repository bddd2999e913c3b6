// Requests of a served page to `alloctrace serve`: the memory at any event, in full detail. A page from a file sends none.

import { unpack } from "./columns";
import type { LayersData, SnapshotManifest } from "./manifest";
import type { Model } from "./model";
import type { Store } from "./store";

export type CursorName = "cursor" | "other";
/** An event, or a time in seconds since the recording began. */
export type Place = { seq: number } | { seconds: number };

/** A zoom by the wheel changes many times a second. */
const REFINE_DELAY_MS = 200;

export class Live {
  private refining: ReturnType<typeof setTimeout> | undefined;
  private latestRequest = 0;
  /** Progress or error, which the cursor bar shows. */
  status = "";
  private readonly listeners: (() => void)[] = [];

  constructor(private readonly model: Model, private readonly store: Store) {
    // The server has a map for every snapshot; the page has maps only for some.
    store.follow(["cursor"], ({ cursor }) => {
      this.latestRequest++; // the pending request must not move the cursor back
      const snapshot = model.snapshots[cursor];
      if (snapshot && model.devices.some((device) => device.curves.measures.has("reserved") && !device.maps.has(cursor))) void this.go({ seq: snapshot.seq }, "cursor");
    });
  }

  follow(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Requests the memory at a place, then moves a cursor there. Only the latest request moves the cursor. */
  async go(place: Place, cursorName: CursorName): Promise<void> {
    const request = ++this.latestRequest;
    const existing = "seq" in place ? this.model.extraSnapshot(place.seq) : null;
    if (existing !== null) {
      this.setStatus("");
      this.store.set({ [cursorName]: existing });
      return;
    }
    const query = "seq" in place ? `seq=${place.seq}` : `ns=${Math.round(place.seconds * 1e9)}`;
    this.setStatus("requesting this event …");
    try {
      const response = await fetch(`snapshot?${query}`);
      if (!response.ok) throw new Error(response.status === 404 ? "the trace has no such event" : await response.text());
      const { manifest, columns } = await unpack(await response.text());
      const snapshot = this.model.addSnapshot(manifest as SnapshotManifest, columns);
      if (request !== this.latestRequest) return;
      this.setStatus("");
      this.store.set({ [cursorName]: snapshot });
    } catch (error) {
      if (request !== this.latestRequest) return;
      // fetch() reports no reason for a failed connection.
      this.setStatus(error instanceof TypeError ? "alloctrace serve does not answer: was it stopped?" : error instanceof Error ? error.message : String(error));
    }
  }

  /** Requests the layers of a part of the run, unless the page has them as fine; then calls `draw`. */
  refineLayers(begin: number, end: number, draw: () => void): void {
    clearTimeout(this.refining);
    const { seconds, devices } = this.model;
    const shown = devices[0].layers(begin, end);
    if ((shown.end - shown.begin) / (end - begin) < 1.5) return;
    this.refining = setTimeout(async () => {
      try {
        const response = await fetch(`layers?begin=${Math.floor(begin * 1e9)}&end=${Math.min(Math.ceil(end * 1e9), Math.round(seconds * 1e9))}`);
        if (!response.ok) return;
        const { manifest, columns } = await unpack(await response.text());
        for (const device of devices) device.refineLayers(columns, manifest as LayersData);
        draw();
      } catch {
        // The coarser layers stay: the next move of the cursor reports the lost connection.
      }
    }, REFINE_DELAY_MS);
  }

  private setStatus(text: string): void {
    this.status = text;
    for (const listener of this.listeners) listener();
  }
}
