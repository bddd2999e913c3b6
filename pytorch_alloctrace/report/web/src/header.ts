// Header of the page: the program, its recording, and the completeness of the trace.

import { h } from "./dom";
import type { Model } from "./model";
import type { Store } from "./store";
import { counted, duration, exact, size } from "./units";

export function header(model: Model): HTMLElement {
  const { header: info, redacted } = model.manifest;
  const begun = new Date(info.begin);
  const facts = [
    duration(model.manifest.seconds), info.steps ? counted(info.steps, "step") : "no steps", counted(info.events, "event"),
    `recorded ${begun.toISOString().slice(0, 16).replace("T", " ")} UTC`,
  ];
  const details: [string, string][] = [...info.facts, ["size of the trace", size(info.file_bytes)]];
  return h("header", {},
    h("div", { class: "brand" }, "Memory report", redacted ? h("span", { class: "redacted" }, "redacted: no source, arguments, host or folders") : null),
    h("h1", {}, info.command),
    h("p", { class: "facts" }, facts.join(" · ")),
    h("p", { class: "facts details" }, ...details.flatMap(([name, value], i) => [i ? " · " : "", h("span", { class: "name" }, name), ` ${value}`])),
    info.whole ? h("p", { class: "integrity good" }, `✓ Trace ${info.integrity}`) : h("p", { class: "integrity bad", role: "alert" }, `The trace is ${info.integrity}. The report lacks the missing parts.`));
}

export function overview(model: Model, store: Store): HTMLElement {
  const tiles = model.devices.map((device) => {
    const peak = device.curves.highest("allocated") ?? 0;
    const last = device.bytesAt(model.snapshots.length - 1);
    const name = device.data.name ? ` (${device.data.name}${device.data.capacity ? `, ${size(device.data.capacity)}` : ""})` : "";
    const reserved = device.curves.highest("reserved");
    const tile = h("button", { type: "button", class: "tile", "data-device": device.name, onclick: () => store.set({ device: device.index }) },
      h("span", { class: "tile-name" }, `${device.name}${name}`),
      h("span", { class: "tile-figures" },
        h("span", { title: exact(peak) }, h("b", {}, size(peak)), " allocated at the peak"),
        reserved !== null ? h("span", { title: exact(reserved) }, h("b", {}, size(reserved)), " reserved at the peak") : null,
        h("span", { title: exact(last) }, h("b", {}, size(last)), " live at the end")));
    store.follow(["device"], (state) => tile.setAttribute("aria-pressed", String(state.device === device.index)));
    return tile;
  });
  return h("div", { class: "tiles" }, ...tiles);
}
