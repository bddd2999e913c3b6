// Sticky bar with the device and the snapshot that all views show.

import { h, replace } from "./dom";
import type { Model } from "./model";
import type { Store } from "./store";
import { exact, instant, number, size } from "./units";

export function cursorBar(model: Model, store: Store): HTMLElement {
  const { snapshots } = model;
  const devices = h("div", { class: "segmented devices", role: "group", "aria-label": "Device" },
    ...model.devices.map((device) => h("button", { type: "button", "data-device": device.name, title: device.data.name || device.name, onclick: () => store.set({ device: device.index }) }, device.name)));
  const slider = h("input", { type: "range", id: "snapshot", min: 0, max: Math.max(snapshots.length - 1, 0), step: 1, "aria-label": "Snapshot", oninput: () => store.set({ cursor: Number(slider.value) }) });
  const description = h("div", { class: "snapshot", role: "status" });
  const lastSeq = Math.max(model.manifest.header.end_seq - 1, 0);
  const event = h("input", { type: "number", id: "event", min: 0, max: lastSeq, step: 1, "aria-label": "Go to event", placeholder: "event", title: "Any event: its number, then Enter",
    onchange: () => event.value !== "" && store.live?.go({ seq: Math.max(0, Math.min(lastSeq, Math.floor(Number(event.value)))) }, "cursor") });
  const liveStatus = h("span", { class: "live-status", role: "status" });
  store.live?.follow(() => (liveStatus.textContent = store.live?.status ?? ""));
  const compare = h("button", { type: "button", id: "compare", onclick: () => store.set({ other: store.state.other === null ? store.state.cursor : null }) });
  const mover = (by: number) => () => move(model, store, by);
  store.follow(["device"], (state) => {
    for (const button of devices.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.device === model.devices[state.device].name));
  });
  store.follow(["device", "cursor", "other"], (state) => {
    const snapshot = model.snapshot(state.cursor);
    const device = model.devices[state.device];
    slider.value = String(model.onPage(state.cursor));
    const bytes = device.bytesAt(state.cursor);
    const step = snapshot.step === null ? "" : `, step ${snapshot.step}`;
    const reasons = snapshot.reasons.filter((reason) => !reason.includes(" on ") || reason.endsWith(` on ${device.name}`) || reason.includes(`on ${device.name}:`));
    replace(description,
      h("b", { title: exact(bytes) }, size(bytes)), ` at ${instant(snapshot.time, model.seconds)}${step}, event ${number(snapshot.seq)}`,
      reasons.length ? h("span", { class: "why" }, reasons.join(", ")) : null);
    compare.textContent = state.other === null ? "Compare from here" : "Stop comparing";
    compare.title = state.other === null ? "Keep this snapshot as B; then move the cursor to see what changed since (key: b)" : "";
  });
  return h("div", { class: "cursor-bar" },
    devices,
    h("div", { class: "mover" }, h("button", { type: "button", "aria-label": "Previous snapshot", title: "Previous snapshot (left arrow)", onclick: mover(-1) }, "◀"), slider,
      h("button", { type: "button", "aria-label": "Next snapshot", title: "Next snapshot (right arrow)", onclick: mover(1) }, "▶")),
    description, store.live ? h("label", { class: "any-event" }, "Go to ", event, liveStatus) : null, compare);
}

export function move(model: Model, store: Store, by: number): void {
  const { cursor } = store.state;
  let to = model.onPage(cursor) + by;
  if (cursor >= model.snapshots.length) {
    // The cursor is at an event between two snapshots of the page: move to one of them.
    const { seq } = model.snapshot(cursor);
    to = by > 0 ? model.snapshots.findIndex((snapshot) => snapshot.seq > seq) : model.snapshots.filter((snapshot) => snapshot.seq < seq).length - 1;
    if (to < 0) return;
  }
  store.set({ cursor: Math.max(0, Math.min(model.snapshots.length - 1, to)) });
}

/** Installs the keys: arrows move the cursor, with Shift to the next named snapshot; Home, End; b compares; / searches. */
export function keys(model: Model, store: Store): void {
  document.addEventListener("keydown", (event) => {
    const target = event.target as HTMLElement;
    const isField = target instanceof HTMLInputElement && target.type !== "range" && target.type !== "checkbox";
    if (event.key === "Escape") {
      if (isField) target.blur();
      store.set({ site: null });
      return;
    }
    if (isField || event.ctrlKey || event.metaKey || event.altKey || !model.snapshots.length) return;
    const moveToNamed = (by: number) => {
      let at = model.onPage(store.state.cursor) + by;
      while (model.snapshots[at] && !model.snapshots[at].reasons.length) at += by;
      if (model.snapshots[at]) store.set({ cursor: at });
    };
    const actions: Record<string, () => void> = {
      ArrowLeft: () => (event.shiftKey ? moveToNamed(-1) : move(model, store, -1)),
      ArrowRight: () => (event.shiftKey ? moveToNamed(1) : move(model, store, 1)),
      Home: () => store.set({ cursor: 0 }),
      End: () => store.set({ cursor: model.snapshots.length - 1 }),
      b: () => store.set({ other: store.state.other === null ? store.state.cursor : null }),
      "/": () => document.getElementById("search")?.focus(),
    };
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
