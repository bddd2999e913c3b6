// Requests of a served page to `alloctrace serve`: the memory at any event, in full detail. A page from a file sends none.

import { unpack } from "./columns";
import type { SnapshotManifest } from "./manifest";
import type { Model } from "./model";
import type { Store } from "./store";

export type CursorName = "cursor" | "other";
/** An event, or a time in seconds since the recording began. */
export type Place = { seq: number } | { seconds: number };

export class Live {
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

  private setStatus(text: string): void {
    this.status = text;
    for (const listener of this.listeners) listener();
  }
}
