// What was recorded, and how whole it is.

import { h } from "./dom";
import type { Model } from "./model";
import type { Store } from "./store";
import { counted, duration, exact, size } from "./units";

export function header(model: Model): HTMLElement {
  const { header: said, redacted } = model.manifest;
  const begun = new Date(said.begin);
  const facts = [
    duration(model.manifest.seconds), said.steps ? counted(said.steps, "step") : "no steps", counted(said.events, "event"),
    `recorded ${begun.toISOString().slice(0, 16).replace("T", " ")} UTC`,
  ];
  const details: [string, string][] = [...said.facts, ["size of the trace", size(said.file_bytes)]];
  return h("header", {},
    h("div", { class: "brand" }, "Memory report", redacted ? h("span", { class: "redacted" }, "redacted: no source, arguments, host or folders") : null),
    h("h1", {}, said.command),
    h("p", { class: "facts" }, facts.join(" · ")),
    h("p", { class: "facts details" }, ...details.flatMap(([name, value], i) => [i ? " · " : "", h("span", { class: "name" }, name), ` ${value}`])),
    said.whole ? h("p", { class: "integrity good" }, `✓ Trace ${said.integrity}`) : h("p", { class: "integrity bad", role: "alert" }, `The trace is ${said.integrity}. What is missing is not in this report.`));
}

/** Each device at its peak and at the end. */
export function overview(model: Model, store: Store): HTMLElement {
  const tiles = model.devices.map((device) => {
    const peak = device.curves.highest("requested") ?? 0;
    const last = device.bytesAt(model.moments.length - 1);
    const name = device.data.name ? ` (${device.data.name}${device.data.capacity ? `, ${size(device.data.capacity)}` : ""})` : "";
    const reserved = device.curves.highest("reserved");
    const tile = h("button", { type: "button", class: "tile", "data-device": device.name, onclick: () => store.set({ device: device.index }) },
      h("span", { class: "tile-name" }, `${device.name}${name}`),
      h("span", { class: "tile-figures" },
        h("span", { title: exact(peak) }, h("b", {}, size(peak)), " requested at most"),
        reserved !== null ? h("span", { title: exact(reserved) }, h("b", {}, size(reserved)), " reserved at most") : null,
        h("span", { title: exact(last) }, h("b", {}, size(last)), " live at the end")));
    store.follow(["device"], (state) => tile.setAttribute("aria-pressed", String(state.device === device.index)));
    return tile;
  });
  return h("div", { class: "tiles" }, ...tiles);
}
