// Use of the reserved memory over time, and its fragmentation at the cursor.

import uPlot from "uplot";

import { Chart } from "./chart";
import { themed, type Colors } from "./colors";
import { h, replace, swatch } from "./dom";
import type { FragmentationData } from "./manifest";
import type { Device, Model } from "./model";
import type { Store } from "./store";
import { line, showTooltip } from "./tooltip";
import { counted, exact, hexadecimal, instant, number, share, size } from "./units";

const stepped = uPlot.paths.stepped!({ align: 1 });

export function fragmentation(model: Model, store: Store, colors: Colors): HTMLElement {
  const device = () => model.devices[store.state.device];
  const chart = new Chart(model, store, () => options(model, store));
  const cursorPanels = h("div", { class: "columns" });
  const empty = h("p", { class: "empty" });
  const legend = h("div", { class: "legend" },
    h("span", {}, swatch(themed("allocated")), "in use"), h("span", {}, swatch(themed("stranded")), "free, stranded among live blocks"),
    h("span", {}, swatch(themed("releasable")), "free, releasable by empty_cache()"), h("span", {}, swatch(themed("largest")), "largest free block"));
  const body = h("div", {}, h("div", { class: "toolbar" }, legend), chart.element, cursorPanels);
  store.follow(["device"], () => {
    const hasSegments = device().curves.measures.has("reserved");
    body.hidden = !hasSegments;
    empty.hidden = hasSegments;
    empty.textContent = `The allocator of ${device().name} reports no segments: it keeps no cache that could be fragmented.`;
    if (hasSegments) chart.rebuild();
  });
  store.follow(["zoom"], () => !body.hidden && chart.refresh());
  store.follow(["cursor", "other"], () => chart.redraw());
  store.follow(["device", "cursor", "site"], () => replace(cursorPanels, ...atCursor(model, device(), store, colors)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => !body.hidden && chart.rebuild());
  return h("div", {}, empty, body);
}

function options(model: Model, store: Store): ReturnType<ConstructorParameters<typeof Chart>[2]> {
  const { curves } = model.devices[store.state.device];
  const area = (fill: string): uPlot.Series => ({ fill, width: 0, paths: stepped, points: { show: false } });
  return {
    height: 190,
    // From back to front: reserved, reserved without releasable, in use.
    series: [area(themed("releasable")), area(themed("stranded")), area(themed("allocated")), { stroke: themed("largest"), width: 1.2, paths: stepped, points: { show: false } }],
    data: (begin, end, width) => {
      const slice = (measure: "reserved" | "releasable" | "stranded" | "largest_free") => curves.slice(measure, begin, end, width)!;
      const [reserved, releasable, stranded, largest] = [slice("reserved"), slice("releasable"), slice("stranded"), slice("largest_free")];
      const notReleasable = reserved.last.map((bytes, i) => bytes - releasable.last[i]);
      return [reserved.times, reserved.last, notReleasable, notReleasable.map((bytes, i) => bytes - stranded.last[i]), largest.last] as uPlot.AlignedData;
    },
    hover: (seconds, event) => {
      const interval = curves.interval(seconds);
      const value = (measure: "reserved" | "releasable" | "stranded" | "largest_free" | "active") => curves.at(measure, interval)?.last ?? 0;
      const free = value("releasable") + value("stranded");
      showTooltip(event, h("div", { class: "tooltip-title" }, instant(seconds, store.state.zoom[1] - store.state.zoom[0])),
        ...(["reserved", "active", "stranded", "releasable"] as const).map((measure) => line(measure, `${size(value(measure))} (${exact(value(measure))})`)),
        line("largest free block", size(value("largest_free"))), line("external fragmentation", free ? share(free - value("largest_free"), free) : "-"));
    },
  };
}

function atCursor(model: Model, device: Device, store: Store, colors: Colors): HTMLElement[] {
  const snapshot = device.maps.nearest(store.state.cursor);
  const data = snapshot === null ? null : device.maps.fragmentation(snapshot);
  if (!data || snapshot === null) return snapshot === null ? [] : [h("p", { class: "empty" }, "Nothing is reserved here.")];
  const note = snapshot === store.state.cursor ? "" : ` (event ${number(model.snapshot(snapshot).seq)}, the nearest snapshot with this detail)`;
  return [
    h("div", { class: "panel" }, h("h3", {}, `At the cursor${note}`), figures(data)),
    h("div", { class: "panel" }, h("h3", {}, "Free pieces by size"), pieces(data)),
    h("div", { class: "panel wide-panel" }, h("h3", {}, "What pins the free memory"), pinners(model, data, store, colors)),
    ...(data.pools.length > 1 ? [h("div", { class: "panel wide-panel" }, h("h3", {}, "Pools and streams"), pools(data))] : []),
  ];
}

function figures(data: FragmentationData): HTMLElement {
  const rows: [string, number, string][] = [
    ["reserved", data.reserved, "held from the driver"], ["in use", data.active, ""], ["free", data.free, "reserved, not in use"],
    ["stranded", data.stranded, "free, but live blocks are in its segments"], ["releasable", data.releasable, "empty_cache() returns it"],
    ["largest free block", data.largest_free, ""],
  ];
  return h("dl", { class: "figures" }, ...rows.flatMap(([name, bytes, about]) => [
    h("dt", { title: about }, name), h("dd", { title: exact(bytes), "data-figure": name.replaceAll(" ", "-"), "data-bytes": bytes }, size(bytes)),
  ]), h("dt", { title: "1 - largest free block / all free bytes" }, "external fragmentation"), h("dd", {}, `${(100 * data.external).toFixed(0)} %`));
}

function pieces(data: FragmentationData): HTMLElement {
  if (!data.pieces.length) return h("p", { class: "empty" }, "Nothing is free.");
  const maxBytes = Math.max(...data.pieces.map(([, , bytes]) => bytes));
  return h("div", { class: "histogram" }, ...data.pieces.map(([from, count, bytes]) => {
    const fill = h("span", { class: "bar-fill" });
    fill.style.width = `${(100 * bytes) / maxBytes}%`;
    fill.style.background = themed("stranded");
    return h("div", { class: "histogram-row", title: `${counted(count, "piece")} of ${size(from)} to ${size(2 * from)}: ${exact(bytes)}` },
      h("span", {}, `from ${size(from)}`), h("span", { class: "bar" }, fill), h("span", {}, count ? `${size(bytes)} in ${number(count)}` : ""));
  }));
}

function pinners(model: Model, data: FragmentationData, store: Store, colors: Colors): HTMLElement {
  if (!data.pinners.length) return h("p", { class: "empty" }, "No block pins a mostly free segment here.");
  return h("div", { class: "list" }, ...data.pinners.map(([id, stranded, blocks, bytes]) => {
    const site = model.site(id);
    return h("button", { type: "button", class: `list-row${store.state.site === id ? " highlighted" : ""}`, onclick: () => store.set({ site: store.state.site === id ? null : id }) },
      swatch(colors.of(id)), h("span", { class: "grow" }, h("span", { class: "label" }, site.label), site.source ? h("code", {}, site.source) : null),
      h("span", { title: exact(stranded) }, `${counted(blocks, "block")} (${size(bytes)}) ${blocks === 1 ? "pins" : "pin"} `, h("b", {}, size(stranded))));
  }));
}

function pools(data: FragmentationData): HTMLElement {
  const titles = ["Pool, stream", "Segments", "Reserved", "In use", "Free", "Largest free"];
  const head = titles.map((text, i) => h("th", { class: i ? "" : "wide" }, text));
  const rows = data.pools.map(([pool, stream, type, segments, total, active, free, largest]) => h("tr", {},
    h("td", { class: "wide" }, `${pool[0] || pool[1] ? `pool (${pool.join(", ")})` : "default pool"}, ${stream ? `stream ${hexadecimal(stream)}` : "default stream"}, ${type}`),
    h("td", { "data-title": titles[1] }, number(segments)),
    ...[total, active, free, largest].map((bytes, i) => h("td", { title: exact(bytes), "data-title": titles[i + 2] }, size(bytes)))));
  return h("div", { class: "table-box" }, h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...rows)));
}
