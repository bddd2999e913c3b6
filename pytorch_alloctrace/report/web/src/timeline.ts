// Memory of a device over time, with steps, regions and marks, and an overview of the whole run below.

import uPlot from "uplot";

import { Chart, verticalLine, type ChartOptions } from "./chart";
import { faded, themed, type Colors } from "./colors";
import { fit, h, replace, swatch } from "./dom";
import type { Measure } from "./manifest";
import type { Device, Model } from "./model";
import type { Store } from "./store";
import { line, showTooltip } from "./tooltip";
import { exact, instant, number, size } from "./units";

const stepped = uPlot.paths.stepped!({ align: 1 });
const NAMES: Record<string, string> = {
  requested: "requested", allocated: "allocated", active: "active", reserved: "reserved", releasable: "releasable",
  stranded: "stranded", largest_free: "largest free block",
};

export function timeline(model: Model, store: Store, colors: Colors): HTMLElement {
  const device = () => model.devices[store.state.device];
  const chart = new Chart(model, store, () => (store.state.stacked ? stackedOptions(model, store, colors) : levelOptions(model, store)));
  const legend = h("div", { class: "legend" });
  const overview = new Overview(model, store, device);
  const mode = (stacked: boolean, text: string) => h("button", { type: "button", "data-stacked": String(stacked), onclick: () => store.set({ stacked }) }, text);
  const modes = h("div", { class: "segmented", role: "group", "aria-label": "What the timeline shows" }, mode(false, "Levels"), mode(true, "By line"));
  const reset = h("button", { type: "button", class: "quiet", onclick: () => store.set({ zoom: [0, model.seconds] }) }, "Whole run");
  const note = h("p", { class: "hint" });

  store.follow(["device", "stacked", "outside"], (state) => {
    for (const button of modes.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.stacked === String(state.stacked)));
    replace(legend, ...(state.stacked ? stackedLegend(model, store, colors) : levelLegend(store, device())));
    const undrawnEvents = device().data ? model.manifest.curves.devices[device().name].segment_events.left_out : 0;
    replace(note, state.stacked
      ? `Drawn at the ${number(model.snapshots.length)} snapshots at which the cursor stops. Levels shows what happens between them.`
      : `Drag to zoom, Ctrl + wheel to zoom, Shift + wheel to move, double-click for the whole run; click to set the cursor, Shift + click to compare. Each pixel shows the lowest (dark) and the highest (light) within it, measured in ${number(model.manifest.curves.points)} intervals.${undrawnEvents ? ` ${number(undrawnEvents)} small segment events are not drawn.` : ""}`);
    chart.rebuild();
  });
  store.follow(["zoom"], (state) => {
    chart.refresh();
    reset.hidden = state.zoom[0] <= 0 && state.zoom[1] >= model.seconds;
  });
  store.follow(["cursor", "other", "site"], () => chart.redraw());
  store.follow(["site"], (state) => state.stacked && chart.rebuild());
  store.follow(["zoom", "device", "cursor", "other"], () => overview.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chart.rebuild();
    overview.draw();
  });
  return h("div", {}, h("div", { class: "toolbar" }, modes, legend, h("span", { class: "spring" }), reset), chart.element, overview.canvas, note);
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

/** Returns the bytes of each line with a distinct colour, and of all other lines together, at each snapshot. */
function layers(model: Model, store: Store, colors: Colors): { site: number | null; bytes: Float64Array }[] {
  const device = model.devices[store.state.device];
  const sums = device.bytesBySite();
  const distinctSites = colors.top.filter((site) => sums.get(site)?.some((bytes) => bytes > 0));
  const otherBytes = new Float64Array(model.snapshots.length);
  for (const [site, bytes] of sums) if (!distinctSites.includes(site)) bytes.forEach((value, i) => (otherBytes[i] += value));
  const layers: { site: number | null; bytes: Float64Array }[] = distinctSites.map((site) => ({ site, bytes: sums.get(site)! }));
  return otherBytes.some((value) => value > 0) ? [...layers, { site: null, bytes: otherBytes }] : layers;
}

function layerColor(site: number | null, colors: Colors, highlighted: number | null): string {
  const color = site === null ? themed("rest") : colors.of(site);
  return highlighted !== null && highlighted !== site ? faded(color, 0.25) : color;
}

function stackedLegend(model: Model, store: Store, colors: Colors): HTMLElement[] {
  return layers(model, store, colors).map(({ site }) =>
    h("button", { type: "button", class: "legend-item", title: site === null ? "all other lines" : model.site(site).label, onclick: () => store.set({ site: store.state.site === site ? null : site }) },
      swatch(layerColor(site, colors, null)), site === null ? "other lines" : shortLabel(model.site(site).label)));
}

function shortLabel(label: string): string {
  return label.replace(/^.*[/\\]/, "").replace(/ in .*$/, "");
}

function stackedOptions(model: Model, store: Store, colors: Colors): ChartOptions {
  const device = model.devices[store.state.device];
  const stack = layers(model, store, colors);
  const times = model.snapshots.map((snapshot) => snapshot.time);
  const levels: number[][] = [];
  let below = times.map(() => 0);
  for (const { bytes } of stack) levels.push((below = below.map((value, i) => value + bytes[i])));
  // The highest layer first: each later layer covers the lower part of the layers before.
  const order = [...stack.keys()].reverse();
  return {
    height: 280,
    series: order.map((i) => ({ fill: layerColor(stack[i].site, colors, store.state.site), width: 0, points: { show: false } })),
    data: () => [times, ...order.map((i) => levels[i])] as uPlot.AlignedData,
    hover: (seconds, event) => {
      const snapshot = model.snapshots[model.nearestSnapshot(seconds)];
      const rows = stack.map(({ site, bytes }) => ({ site, bytes: bytes[snapshot.index] })).filter(({ bytes }) => bytes > 0).sort((a, b) => b.bytes - a.bytes);
      showTooltip(event, h("div", { class: "tooltip-title" }, `event ${number(snapshot.seq)} at ${instant(snapshot.time, model.seconds)}: ${size(device.bytesAt(snapshot.index))}`),
        ...rows.map(({ site, bytes }) => line(h("span", {}, swatch(layerColor(site, colors, null)), site === null ? "other lines" : model.site(site).label), size(bytes))));
    },
    overlay: (u) => overlay(u, model, device),
  };
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
