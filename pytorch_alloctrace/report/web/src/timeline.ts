// Memory of a device over time, with steps, regions and marks, and an overview of the whole run below.

import uPlot from "uplot";

import { Chart, verticalLine, type ChartOptions } from "./chart";
import { faded, roleColor, themed, type Colors } from "./colors";
import { fit, h, replace, swatch } from "./dom";
import type { LayerBy } from "./layers";
import type { Measure } from "./manifest";
import type { Device, Model } from "./model";
import type { State, Store } from "./store";
import { line, showTooltip } from "./tooltip";
import { counted, exact, instant, number, size } from "./units";

const stepped = uPlot.paths.stepped!({ align: 1 });
const NAMES: Record<string, string> = {
  requested: "requested", allocated: "allocated", active: "active", reserved: "reserved", releasable: "releasable",
  stranded: "stranded", largest_free: "largest free block",
};

export function timeline(model: Model, store: Store, colors: Colors): HTMLElement {
  const device = () => model.devices[store.state.device];
  const chart = new Chart(model, store, () => (store.state.timeline === "levels" ? levelOptions(model, store) : layerOptions(model, store, colors, store.state.timeline)));
  const legend = h("div", { class: "legend" });
  const overview = new Overview(model, store, device);
  const mode = (timeline: State["timeline"], text: string) => h("button", { type: "button", "data-timeline": timeline, onclick: () => store.set({ timeline }) }, text);
  const modes = h("div", { class: "segmented", role: "group", "aria-label": "What the timeline shows" }, mode("levels", "Levels"), mode("line", "By line"), hasRoles(model) ? mode("role", "By role") : null);
  const refine = () => {
    if (store.state.timeline !== "levels") store.live?.refineLayers(...store.state.zoom, () => chart.refresh());
  };
  const reset = h("button", { type: "button", class: "quiet", onclick: () => store.set({ zoom: [0, model.seconds] }) }, "Whole run");
  const note = h("p", { class: "hint" });

  const showMode = (state: State) => {
    for (const button of modes.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.timeline === state.timeline));
    replace(legend, ...(state.timeline === "levels" ? levelLegend(store, device()) : layerLegend(model, store, colors, state.timeline)));
    const undrawnEvents = device().data ? model.manifest.curves.devices[device().name].segment_events.left_out : 0;
    replace(note, state.timeline !== "levels"
      ? layerNote(model, store, colors, state.timeline)
      : `Drag to zoom, Ctrl + wheel to zoom, Shift + wheel to move, double-click for the whole run; click to set the cursor, Shift + click to compare. Each pixel shows the lowest (dark) and the highest (light) within it, measured in ${number(model.manifest.curves.points)} intervals.${undrawnEvents ? ` ${number(undrawnEvents)} small segment events are not drawn.` : ""}`);
    chart.rebuild();
  };
  store.follow(["device", "timeline", "outside"], showMode);
  store.follow(["timeline"], refine);
  store.follow(["zoom"], (state) => {
    chart.refresh();
    refine();
    reset.hidden = state.zoom[0] <= 0 && state.zoom[1] >= model.seconds;
  });
  store.follow(["cursor", "other", "site"], () => chart.redraw());
  store.follow(["site"], (state) => state.timeline === "line" && showMode(state));
  store.follow(["zoom", "device", "cursor", "other"], () => overview.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chart.rebuild();
    overview.draw();
  });
  return h("div", {}, h("div", { class: "toolbar" }, modes, legend, h("span", { class: "spring" }), reset), chart.element, overview.canvas, note);
}

function hasRoles(model: Model): boolean {
  return model.devices.some((device) => device.layers(0, model.seconds).used("role").some((role) => model.manifest.roles[role] !== "unknown"));
}

/** Returns the curves, from back to front. Each area starts at zero. */
function levels(device: Device): { measure: Measure; name: string; fill?: string; stroke?: string; least?: boolean; width?: number }[] {
  const allocatedColor = themed("allocated");
  const curves = [
    { measure: "reserved" as Measure, name: "reserved", fill: themed("reserved"), stroke: themed("reserved-line"), width: 1 },
    { measure: "active" as Measure, name: "active", fill: themed("active"), width: 0 },
    { measure: "allocated" as Measure, name: "allocated", fill: faded(allocatedColor, 0.45), width: 0 },
    { measure: "allocated" as Measure, name: "", fill: allocatedColor, least: true, width: 0 },
    { measure: "requested" as Measure, name: "requested", stroke: themed("requested"), width: 1 },
  ];
  const { measures } = device.curves;
  // Without pending frees, active equals allocated.
  return curves.filter(({ measure }) => measures.has(measure) && (measure !== "active" || hasPendingBytes(device)));
}

function hasPendingBytes(device: Device): boolean {
  const slice = (measure: Measure) => device.curves.slice(measure, 0, device.curves.seconds, 400)?.most ?? [];
  const [active, allocated] = [slice("active"), slice("allocated")];
  return active.some((value, i) => value !== allocated[i]);
}

function levelLegend(store: Store, device: Device): HTMLElement[] {
  const items = levels(device).filter(({ name }) => name).map(({ name, fill, stroke }) => h("span", {}, swatch(fill ?? stroke ?? ""), name));
  if (device.curves.outside) {
    const box = h("input", { type: "checkbox", id: "outside", checked: store.state.outside, onchange: () => store.set({ outside: box.checked }) });
    items.push(h("label", { class: "check" }, box, h("span", {}, swatch(themed("outside")), "on top: used outside PyTorch")));
  }
  if (device.curves.capacity && nearCapacity(device)) items.push(h("span", {}, swatch(themed("capacity")), "capacity"));
  return items;
}

/** Returns true if the capacity should be drawn. On a device that is little used, the scale would flatten the curves. */
function nearCapacity(device: Device): boolean {
  const reserved = device.curves.slice(device.curves.measures.has("reserved") ? "reserved" : "allocated", 0, device.curves.seconds, 400)?.most ?? [];
  return device.curves.capacity !== null && Math.max(0, ...reserved) * 3 > device.curves.capacity;
}

function levelOptions(model: Model, store: Store): ChartOptions {
  const device = model.devices[store.state.device];
  const { curves } = device;
  const drawnLevels = levels(device);
  const series: uPlot.Series[] = drawnLevels.map(({ fill, stroke, width }) => ({ fill, stroke, width: width ?? 0, paths: stepped, points: { show: false } }));
  const capacity = curves.capacity !== null && nearCapacity(device) ? curves.capacity : null;
  const outside = store.state.outside ? curves.outside : null;
  if (outside) series.push({ stroke: themed("outside"), width: 1, dash: [2, 2], paths: stepped, points: { show: false } });
  if (capacity !== null) series.push({ stroke: themed("capacity"), width: 1.2, dash: [8, 4], points: { show: false } });
  const base: Measure = curves.measures.has("reserved") ? "reserved" : "allocated";
  return {
    height: 280,
    series,
    data: (begin, end, width) => {
      const slices = drawnLevels.map(({ measure, least }) => {
        const slice = curves.slice(measure, begin, end, width)!;
        return { times: slice.times, values: least ? slice.least : slice.most };
      });
      const times = slices[0]?.times ?? [begin, end];
      const values: (number | null)[][] = slices.map(({ values }) => values);
      if (outside) {
        const baseBytes = curves.slice(base, begin, end, width)!.most;
        values.push(times.map((time, i) => {
          const bytes = outside[curves.interval(time)];
          return bytes < 0 ? null : baseBytes[i] + bytes;
        }));
      }
      if (capacity !== null) values.push(times.map(() => capacity));
      return [times, ...values] as uPlot.AlignedData;
    },
    hover: (seconds, event) => levelTooltip(model, device, store, seconds, event),
    overlay: (u) => overlay(u, model, device),
  };
}

function levelTooltip(model: Model, device: Device, store: Store, seconds: number, event: MouseEvent): void {
  const { curves } = device;
  const [begin, end] = store.state.zoom;
  const interval = curves.interval(seconds);
  const rows = (["requested", "allocated", "active", "reserved", "releasable", "stranded", "largest_free"] as Measure[]).flatMap((measure) => {
    const at = curves.at(measure, interval);
    if (!at) return [];
    const range = at.least === at.most ? size(at.last) : `${size(at.least)} to ${size(at.most)}`;
    return [line(NAMES[measure], at.least === at.most ? `${range} (${exact(at.last)})` : range)];
  });
  if (curves.outside && curves.outside[interval] >= 0) rows.push(line("outside PyTorch", size(curves.outside[interval])));
  const step = stepAt(model, seconds);
  const title = `${instant(seconds, end - begin)}${step === null ? "" : `, step ${step}`}`;
  const regions = model.manifest.positions.regions.filter(([, from, to]) => from <= seconds * 1e9 && seconds * 1e9 <= to).slice(0, 3);
  showTooltip(event, h("div", { class: "tooltip-title" }, title), ...rows, ...regions.map(([name]) => line("in region", name)));
}

function stepAt(model: Model, seconds: number): number | null {
  const { time, number: numbers } = model.steps;
  if (!time.length) return null;
  const after = time.findIndex((end) => end / 1e9 >= seconds);
  return after < 0 ? numbers[numbers.length - 1] + 1 : numbers[after];
}

/** Draws steps, regions, marks, segment events, failed allocations, and ticks for the snapshots. */
function overlay(u: uPlot, model: Model, device: Device): void {
  const ratio = uPlot.pxRatio;
  const { left, top, width, height } = u.bbox;
  const context = u.ctx;
  const x = (seconds: number) => u.valToPos(seconds, "x", true);
  const isVisible = (at: number) => at >= left - 1 && at <= left + width + 1;
  context.save();
  context.beginPath();
  context.rect(left, 0, width, top + height);
  context.clip();

  const { steps } = model;
  const visibleSteps = [...steps.time.keys()].filter((i) => isVisible(x(steps.time[i] / 1e9)));
  if (visibleSteps.length && visibleSteps.length <= width / (14 * ratio)) {
    context.strokeStyle = faded(themed("step"), 0.55);
    context.lineWidth = ratio;
    context.beginPath();
    for (const i of visibleSteps) {
      const at = Math.round(x(steps.time[i] / 1e9)) + 0.5;
      context.moveTo(at, top);
      context.lineTo(at, top + height);
    }
    context.stroke();
  }
  context.font = `${10.5 * ratio}px system-ui, sans-serif`;
  context.textBaseline = "top";
  context.textAlign = "left";
  for (const [name, begin, end] of model.manifest.positions.regions) {
    const [from, to] = [Math.max(x(begin / 1e9), left), Math.min(x(end / 1e9), left + width)];
    if (to < left || from > left + width || to - from < ratio) continue;
    context.fillStyle = faded(themed("accent"), 0.16);
    context.fillRect(from, top, to - from, 14 * ratio);
    if (to - from > 40 * ratio) {
      context.fillStyle = themed("soft");
      context.fillText(shorten(context, name, to - from - 8 * ratio), from + 4 * ratio, top + 2 * ratio);
    }
  }
  let lastLabelX = -Infinity;
  for (const [name, , time] of model.manifest.positions.marks) {
    const at = x(time / 1e9);
    if (!isVisible(at)) continue;
    verticalLine(u, time / 1e9, themed("mark"), [2, 3]);
    if (at - lastLabelX < 60 * ratio) continue;
    lastLabelX = at;
    context.fillStyle = themed("mark");
    context.fillText(shorten(context, name, 120 * ratio), at + 3 * ratio, top + 16 * ratio);
  }
  const events = device.curves.segmentEvents;
  const colors = [themed("returned"), themed("taken")];
  const outline = themed("card");
  const visibleEvents = [...events.time.keys()].filter((i) => isVisible(x(events.time[i] / 1e9)));
  for (const i of visibleEvents) {
    const at = x(events.time[i] / 1e9);
    const isAllocation = events.bytes[i] > 0;
    context.fillStyle = colors[isAllocation ? 1 : 0];
    if (visibleEvents.length > width / (10 * ratio)) {
      // Many events: one tick each.
      context.fillRect(at - ratio / 2, top + height - (isAllocation ? 7 : 4) * ratio, ratio, (isAllocation ? 7 : 4) * ratio);
      continue;
    }
    context.beginPath();
    const base = top + height - 1;
    const [tip, foot] = isAllocation ? [base - 7 * ratio, base] : [base, base - 7 * ratio];
    context.moveTo(at, tip);
    context.lineTo(at - 3 * ratio, foot);
    context.lineTo(at + 3 * ratio, foot);
    context.closePath();
    context.fill();
    context.strokeStyle = outline;
    context.lineWidth = ratio;
    context.stroke();
  }
  for (const failure of model.manifest.failed_allocations) {
    if (failure.device === device.name) verticalLine(u, failure.time / 1e9, themed("bad"), [], "OUT OF MEMORY");
  }
  context.fillStyle = themed("soft");
  for (const snapshot of model.snapshots) {
    const at = x(snapshot.time);
    if (isVisible(at)) context.fillRect(at - ratio / 2, top - 5 * ratio, ratio, 4 * ratio);
  }
  context.restore();
}

function shorten(context: CanvasRenderingContext2D, text: string, room: number): string {
  if (context.measureText(text).width <= room) return text;
  let length = text.length;
  while (length > 1 && context.measureText(`${text.slice(0, length)}…`).width > room) length--;
  return `${text.slice(0, length)}…`;
}

interface Layer {
  number: number;
  name: string;
  /** Line that a click highlights; null for roles and for all other lines. */
  site: number | null;
  color: string;
}

/** Returns the roles or lines that ever had memory on a device, from bottom to top. */
function layersOf(model: Model, store: Store, colors: Colors, by: LayerBy): Layer[] {
  const device = model.devices[store.state.device];
  const { lines } = device.data;
  return device.layers(0, model.seconds).used(by).map((number): Layer => {
    if (by === "role") return { number, name: model.manifest.roles[number], site: null, color: roleColor(model.manifest.roles[number]) };
    const site = lines[number] ?? null;
    return { number, site, name: site === null ? "other lines" : model.site(site).label, color: site === null ? themed("rest") : colors.of(site) };
  });
}

/** Returns the highlighted line, which is drawn alone. */
function aloneOf(layers: Layer[], store: Store): Layer | undefined {
  return layers.find(({ site }) => site !== null && site === store.state.site);
}

function layerLegend(model: Model, store: Store, colors: Colors, by: LayerBy): HTMLElement[] {
  const layers = layersOf(model, store, colors, by);
  const alone = aloneOf(layers, store);
  const isSmall = (layer: Layer) => layer.site !== null && !colors.top.includes(layer.site) && layer !== alone;
  const isRest = (layer: Layer) => by === "line" && layer.site === null;
  const item = (layer: Layer) => layer.site === null
    ? h("span", {}, swatch(layer.color), layer.name)
    : h("button", { type: "button", class: "legend-item", title: layer.name, "aria-pressed": String(layer === alone), onclick: () => store.set({ site: store.state.site === layer.site ? null : layer.site }) },
      swatch(layer.color), shortLabel(layer.name));
  const small = layers.filter(isSmall);
  return [
    ...layers.filter((layer) => !isSmall(layer) && !isRest(layer)).map(item),
    ...(small.length ? [h("span", {}, swatch(small[0].color), counted(small.length, "smaller line"))] : []),
    ...layers.filter(isRest).map(item),
  ];
}

function shortLabel(label: string): string {
  return label.replace(/^.*[/\\]/, "").replace(/ in .*$/, "");
}

const MAX_TOOLTIP_LINES = 12;

function layerOptions(model: Model, store: Store, colors: Colors, by: LayerBy): ChartOptions {
  const device = model.devices[store.state.device];
  const layers = layersOf(model, store, colors, by);
  const alone = aloneOf(layers, store);
  const area = (fill: string): uPlot.Series => ({ fill, width: 0, paths: stepped, points: { show: false } });
  let width = 0;
  return {
    height: 280,
    // The highest layer first: each later layer covers the lower part of the layers before.
    series: alone ? [area(faded(alone.color, 0.45)), area(alone.color)] : [...layers].reverse().map(({ color }) => area(color)),
    data: (begin, end, chartWidth) => {
      width = chartWidth;
      const slice = device.layers(begin, end).slice(by, begin, end, chartWidth);
      if (alone) return [slice.times, slice.values(alone.number, "most"), slice.values(alone.number, "least")] as uPlot.AlignedData;
      let below: (number | null)[] = slice.times.map(() => 0);
      const tops = layers.map(({ number }) => {
        const bytes = slice.values(number, "peak");
        return (below = below.map((value, i) => (value === null || bytes[i] === null ? null : value + bytes[i])));
      });
      return [slice.times, ...tops.reverse()] as uPlot.AlignedData;
    },
    hover: (seconds, event) => {
      const [begin, end] = store.state.zoom;
      const drawn = device.layers(begin, end);
      const state = drawn.at(by, seconds, begin, end, width);
      if (!state) return showTooltip(event, h("div", {}, seconds < drawn.begin ? "Nothing was allocated yet." : "Not known: this part of the trace is compacted."));
      const rows = layers.map((layer) => ({ layer, ...state.of(layer.number) })).filter(({ most }) => most > 0).sort((a, b) => b.peak - a.peak || b.most - a.most);
      const left = rows.slice(MAX_TOOLTIP_LINES);
      const range = (least: number, most: number) => (least === most ? "" : ` (${size(least)} to ${size(most)})`);
      showTooltip(event,
        h("div", { class: "tooltip-title" }, `${size(state.total)} after event ${number(state.seq)}`),
        h("div", { class: "hint" }, `the most from ${instant(state.begin, end - begin)} to ${instant(state.end, end - begin)}${rows.some(({ least, most }) => least !== most) ? "; in brackets the lowest and highest of each" : ""}`),
        ...rows.slice(0, MAX_TOOLTIP_LINES).map(({ layer, peak, least, most }) => line(h("span", {}, swatch(layer.color), layer.name), size(peak) + range(least, most))),
        left.length ? line(`${counted(left.length, "more")}`.replace(/s$/, ""), size(left.reduce((sum, { peak }) => sum + peak, 0))) : null);
    },
    overlay: (u) => overlay(u, model, device),
  };
}

function layerNote(model: Model, store: Store, colors: Colors, by: LayerBy): string {
  const { points } = model.manifest.layers;
  const finer = store.live ? "Zooming in requests finer intervals." : "For finer intervals, open the trace with alloctrace serve.";
  const measured = `Measured in ${number(points)} intervals. ${finer}`;
  const alone = aloneOf(layersOf(model, store, colors, by), store);
  if (alone) return `${alone.name} alone: each pixel shows the lowest (dark) and the highest (light) within it. Click it again, or press Esc, to see all lines. ${measured}`;
  const click = by === "line" ? " Click a line to see it alone." : "";
  return `Requested bytes. Each step shows the memory after one event: that of its interval with the most memory.${click} ${measured}`;
}

/** Strip of the whole run, in which the visible part can be dragged or selected. */
class Overview {
  readonly canvas = h("canvas", { class: "overview", height: 44, title: "The whole run: drag to select the visible part" });

  constructor(private readonly model: Model, private readonly store: Store, private readonly device: () => Device) {
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentElement ?? this.canvas);
    window.addEventListener("resize", () => this.draw());
    this.canvas.addEventListener("pointerdown", (event) => this.drag(event));
    this.canvas.addEventListener("dblclick", () => store.set({ zoom: [0, model.seconds] }));
  }

  draw(): void {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!width) {
      requestAnimationFrame(() => this.canvas.isConnected && this.canvas.parentElement?.clientWidth && this.draw());
      return;
    }
    const height = 44;
    const context = fit(this.canvas, width, height);
    const x = (seconds: number) => this.x(seconds, width);
    const { curves } = this.device();
    const slice = curves.slice("allocated", 0, this.model.seconds, width) ?? curves.slice("requested", 0, this.model.seconds, width);
    context.fillStyle = themed("inset");
    context.fillRect(LEFT, 0, width - LEFT - RIGHT, height);
    if (slice) {
      const maxBytes = Math.max(1, ...slice.most);
      context.fillStyle = faded(themed("allocated"), 0.7);
      for (let i = 0; i + 1 < slice.times.length; i++) {
        const top = (slice.most[i] / maxBytes) * (height - 4);
        context.fillRect(x(slice.times[i]), height - top, Math.max(x(slice.times[i + 1]) - x(slice.times[i]), 1), top);
      }
    }
    const [begin, end] = this.store.state.zoom;
    context.fillStyle = faded(themed("page"), 0.72);
    context.fillRect(LEFT, 0, x(begin) - LEFT, height);
    context.fillRect(x(end), 0, width - RIGHT - x(end), height);
    context.strokeStyle = themed("accent");
    context.strokeRect(x(begin) + 0.5, 0.5, Math.max(x(end) - x(begin) - 1, 2), height - 1);
    context.fillStyle = themed("accent");
    context.fillRect(x(this.model.snapshot(this.store.state.cursor)?.time ?? 0) - 0.75, 0, 1.5, height);
  }

  private x(seconds: number, width: number): number {
    return LEFT + (seconds / this.model.seconds) * (width - LEFT - RIGHT);
  }

  private drag(event: PointerEvent): void {
    const runSeconds = this.model.seconds;
    const box = this.canvas.getBoundingClientRect();
    const at = (position: number) => Math.max(0, Math.min(runSeconds, ((position - box.left - LEFT) / (box.width - LEFT - RIGHT)) * runSeconds));
    const from = at(event.clientX);
    const [begin, end] = this.store.state.zoom;
    const movesVisiblePart = from >= begin && from <= end && end - begin < runSeconds * 0.98;
    this.canvas.setPointerCapture(event.pointerId);
    const move = (next: PointerEvent) => {
      const to = at(next.clientX);
      if (movesVisiblePart) {
        const newBegin = Math.max(0, Math.min(runSeconds - (end - begin), begin + to - from));
        this.store.set({ zoom: [newBegin, newBegin + end - begin] });
      } else if (Math.abs(to - from) > runSeconds / 1000) {
        this.store.set({ zoom: [Math.min(from, to), Math.max(from, to)] });
      }
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", () => this.canvas.removeEventListener("pointermove", move), { once: true });
  }
}

/** Margins of the chart above, in pixels. */
const LEFT = 68;
const RIGHT = 12;
