// A page that `alloctrace serve` shows asks for what it does not have: the memory at any event, in full detail.
// A page from a file has nobody to ask.

import { unpack } from "./columns";
import type { MomentManifest } from "./manifest";
import type { Model } from "./model";
import type { Store } from "./store";

/** Which of the two cursors goes there. */
export type Which = "cursor" | "other";
/** An event, or a time in seconds since the recording began. */
export type Place = { seq: number } | { seconds: number };

export class Live {
  private asked = 0;
  /** What is being asked for, or went wrong; for the bar of the cursor. */
  said = "";
  private readonly listeners: (() => void)[] = [];

  constructor(private readonly model: Model, private readonly store: Store) {
    // Moments of the page without a map of their own have one here.
    store.follow(["cursor"], ({ cursor }) => {
      this.asked++; // whoever has moved the cursor meanwhile does not wait for what was asked before
      const moment = model.moments[cursor];
      if (moment && model.devices.some((device) => device.curves.known.has("reserved") && !device.maps.has(cursor))) void this.go({ seq: moment.seq }, "cursor");
    });
  }

  /** Calls a view when `said` has changed. */
  follow(listener: () => void): void {
    this.listeners.push(listener);
  }

  /** Moves a cursor to a place, once its memory is here. The last place that was asked for counts. */
  async go(place: Place, which: Which): Promise<void> {
    const asked = ++this.asked;
    const known = "seq" in place ? this.model.extraMoment(place.seq) : null;
    if (known !== null) {
      this.say("");
      this.store.set({ [which]: known });
      return;
    }
    const query = "seq" in place ? `seq=${place.seq}` : `ns=${Math.round(place.seconds * 1e9)}`;
    this.say("asking for this moment …");
    try {
      const response = await fetch(`moment?${query}`);
      if (!response.ok) throw new Error(response.status === 404 ? "the trace has no such moment" : await response.text());
      const { manifest, columns } = await unpack(await response.text());
      const moment = this.model.addMoment(manifest as MomentManifest, columns);
      if (asked !== this.asked) return;
      this.say("");
      this.store.set({ [which]: moment });
    } catch (error) {
      if (asked !== this.asked) return;
      // fetch() says no more than that it failed.
      this.say(error instanceof TypeError ? "alloctrace serve does not answer: was it stopped?" : error instanceof Error ? error.message : String(error));
    }
  }

  private say(text: string): void {
    this.said = text;
    for (const listener of this.listeners) listener();
  }
}
