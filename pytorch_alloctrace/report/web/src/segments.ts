// Address map: each segment is a strip, as wide as its bytes, divided into blocks. Long strips continue in the next row.

import { ageColor, faded, themed, type Colors } from "./colors";
import { fit, h, replace, swatch } from "./dom";
import type { Block, Segment } from "./maps";
import type { Device, Model } from "./model";
import type { ColorBy, Store } from "./store";
import { hideTooltip, line, showTooltip } from "./tooltip";
import { counted, duration, exact, hexadecimal, number, size } from "./units";

const ROW = 26;
const GAP = 8;
const TARGET_ROWS = 14;
/** Maximum number of rows before a click on "Draw all". Tens of thousands of segments would make the page very long. */
const MAX_ROWS = 60;
const MIN_STRIP_WIDTH = 7;
const STRIP_GAP = 4;

interface Strip {
  segment: Segment;
  /** Shown part of the segment, in bytes from its beginning. */
  from: number;
  to: number;
  x: number;
  y: number;
  width: number;
}

const COLOR_BY: [ColorBy, string][] = [["site", "Line"], ["state", "State"], ["age", "Age"], ["stream", "Stream"]];

export function segments(model: Model, store: Store, colors: Colors): HTMLElement {
  const map = new SegmentMap(model, store, colors);
  const lead = h("p", { class: "lead" });
  const legend = h("div", { class: "legend" });
  const note = h("p", { class: "hint" });
  const modes = h("div", { class: "segmented", role: "group", "aria-label": "What the colours are" },
    ...COLOR_BY.map(([by, text]) => h("button", { type: "button", "data-by": by, onclick: () => store.set({ colorBy: by }) }, text)));
  const body = h("div", {}, h("div", { class: "toolbar" }, h("span", { class: "hint" }, "Colours are"), modes, legend), map.canvas, map.undrawnNote, note);

  store.follow(["device", "cursor", "colorBy", "site"], (state) => {
    const device = model.devices[state.device];
    const snapshot = device.maps.nearest(state.cursor);
    const mapped = snapshot === null ? [] : device.maps.segments(snapshot);
    for (const button of modes.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.by === state.colorBy));
    body.hidden = !mapped.length;
    if (snapshot === null || !device.curves.measures.has("reserved")) {
      replace(lead, `The allocator of ${device.name} reports no segments.`);
      return;
    }
    const reserved = mapped.reduce((sum, segment) => sum + segment.size, 0);
    replace(lead, h("b", { title: exact(reserved), "data-bytes": reserved, id: "reserved-bytes" }, size(reserved)), ` reserved in ${counted(mapped.length, "segment")}.`);
    const notes = [];
    if (snapshot !== state.cursor) notes.push(`The map is that of the nearest snapshot with a map, event ${number(model.snapshot(snapshot).seq)}.`);
    if (device.maps.leftOut(snapshot)) notes.push(`${number(device.maps.leftOut(snapshot))} of the smallest blocks are left out.`);
    notes.push("Empty gaps are free memory. A framed block pins: it keeps a mostly free segment from being returned to the driver.");
    note.textContent = notes.join(" ");
    map.show(device, snapshot, mapped);
    replace(legend, ...map.legend());
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => map.draw());
  return h("div", {}, lead, body);
}

class SegmentMap {
  readonly canvas = h("canvas", { class: "segments", role: "img", "aria-label": "Map of the segments and blocks" });
  readonly undrawnNote = h("p", { class: "hint" });
  private drawsAll = false;
  private strips: Strip[] = [];
  private segments: Segment[] = [];
  private device: Device | null = null;
  private snapshot = 0;
  /** Time of the earliest allocation on the map, as a share of the run. */
  private oldest = 0;

  constructor(private readonly model: Model, private readonly store: Store, private readonly colors: Colors) {
    window.addEventListener("resize", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTooltip);
    this.canvas.addEventListener("click", (event) => {
      const hit = this.at(event);
      const site = hit?.block && hit.block.frame >= 0 ? model.siteOfFrame(hit.block.frame) : null;
      store.set({ site: site === store.state.site ? null : site });
    });
  }

  show(device: Device, snapshot: number, mapped: Segment[]): void {
    this.device = device;
    this.snapshot = snapshot;
    this.oldest = 1;
    for (const segment of mapped) for (const block of segment.blocks) if (block.allocTime !== null) this.oldest = Math.min(this.oldest, block.allocTime);
    this.segments = [...mapped].sort((a, b) => b.size - a.size || a.address - b.address);
    this.draw();
  }

  draw(): void {
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!this.device || !this.segments.length) return;
    if (!width) {
      requestAnimationFrame(() => this.canvas.isConnected && this.canvas.parentElement?.clientWidth && this.draw());
      return;
    }
    const strips = layout(this.segments, width);
    this.strips = this.drawsAll ? strips : strips.filter((strip) => strip.y < MAX_ROWS * (ROW + GAP));
    this.describeUndrawn(strips.slice(this.strips.length));
    const height = Math.max(...this.strips.map((strip) => strip.y)) + ROW;
    const context = fit(this.canvas, width, height);
    for (const strip of this.strips) this.paint(context, strip);
  }

  private describeUndrawn(undrawn: Strip[]): void {
    const segments = new Set(undrawn.map((strip) => strip.segment));
    const bytes = undrawn.reduce((sum, strip) => sum + strip.to - strip.from, 0);
    const drawAll = () => { this.drawsAll = true; this.draw(); };
    this.undrawnNote.hidden = !undrawn.length;
    replace(this.undrawnNote, `The last ${counted(segments.size, "segment")}, ${size(bytes)}, are not drawn. `,
      h("button", { type: "button", id: "all-segments", onclick: drawAll }, "Draw all"));
  }

  private paint(context: CanvasRenderingContext2D, strip: Strip): void {
    const { segment, from, to, x, y, width } = strip;
    const scale = width / (to - from);
    context.fillStyle = themed("free");
    context.fillRect(x, y, width, ROW);
    for (const block of segment.blocks) {
      if (block.state === "free") continue;
      const [begin, end] = [block.address - segment.address, block.address - segment.address + block.size];
      if (end <= from || begin >= to) continue;
      const left = x + (Math.max(begin, from) - from) * scale;
      const right = x + (Math.min(end, to) - from) * scale;
      const room = Math.max(right - left, 0.7);
      context.fillStyle = this.color(block, segment);
      context.fillRect(left, y, room > 3 ? room - 0.5 : room, ROW);
      if (block.pins) {
        context.strokeStyle = themed("text");
        context.lineWidth = 1.5;
        context.strokeRect(left + 0.75, y + 0.75, Math.max(room - 1.5, 1), ROW - 1.5);
      }
    }
    context.strokeStyle = themed("border-strong");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x, y + 0.5);
    context.lineTo(x + width, y + 0.5);
    context.moveTo(x, y + ROW - 0.5);
    context.lineTo(x + width, y + ROW - 0.5);
    // No border where a segment continues in another row.
    if (from === 0) { context.moveTo(x + 0.5, y); context.lineTo(x + 0.5, y + ROW); }
    if (to === segment.size) { context.moveTo(x + width - 0.5, y); context.lineTo(x + width - 0.5, y + ROW); }
    context.stroke();
  }

  private color(block: Block, segment: Segment): string {
    const { colorBy, site } = this.store.state;
    const blockSite = this.model.siteOfFrame(block.frame);
    let color: string;
    if (colorBy === "site") color = this.colors.of(blockSite);
    else if (colorBy === "state") color = block.state === "pending" ? themed("pending") : themed("allocated");
    else if (colorBy === "age") color = block.allocTime === null ? themed("rest") : ageColor((this.now() - block.allocTime) / Math.max(this.now() - this.oldest, 1e-9));
    else color = streamColor(this.streams().indexOf(segment.stream));
    return site !== null && site !== blockSite ? faded(color, 0.2) : color;
  }

  private now(): number {
    return this.model.snapshot(this.snapshot).time / this.model.seconds;
  }

  private streams(): number[] {
    return [...new Set(this.segments.map((segment) => segment.stream))].sort((a, b) => a - b);
  }

  legend(): HTMLElement[] {
    const { colorBy } = this.store.state;
    const item = (color: string, text: string) => h("span", {}, swatch(color), text);
    const free = item(themed("free"), "free");
    free.firstElementChild!.classList.add("outlined");
    if (colorBy === "state") return [item(themed("allocated"), "allocated"), item(themed("pending"), "freed, awaited by another stream"), free];
    if (colorBy === "age") return [item(ageColor(0), "just allocated"), item(ageColor(0.5), "older"), item(ageColor(1), "the oldest"), item(themed("rest"), "before the recording"), free];
    if (colorBy === "stream") return [...this.streams().slice(0, 8).map((stream, i) => item(streamColor(i), stream === 0 ? "default stream" : `stream ${hexadecimal(stream)}`)), free];
    const bytesBySite = new Map<number, number>();
    for (const segment of this.segments) for (const block of segment.blocks) {
      if (block.state !== "free") bytesBySite.set(this.model.siteOfFrame(block.frame), (bytesBySite.get(this.model.siteOfFrame(block.frame)) ?? 0) + block.size);
    }
    const topSites = this.colors.top.filter((site) => bytesBySite.has(site)).slice(0, 5);
    return [...topSites.map((site) => item(this.colors.of(site), this.model.site(site).label.replace(/^.*[/\\]/, "").replace(/ in .*$/, ""))), item(themed("rest"), "other lines"), free];
  }

  private at(event: MouseEvent): { strip: Strip; block: Block | null } | null {
    const strip = this.strips.find(({ x, y, width }) => event.offsetX >= x && event.offsetX < x + width && event.offsetY >= y && event.offsetY < y + ROW);
    if (!strip) return null;
    const address = strip.segment.address + strip.from + ((event.offsetX - strip.x) / strip.width) * (strip.to - strip.from);
    return { strip, block: strip.segment.blocks.find((block) => address >= block.address && address < block.address + block.size) ?? null };
  }

  private hover(event: MouseEvent): void {
    const hit = this.at(event);
    this.canvas.style.cursor = hit?.block && hit.block.state !== "free" ? "pointer" : "";
    if (!hit) return hideTooltip();
    const { segment } = hit.strip;
    const active = segment.blocks.reduce((sum, block) => sum + (block.state === "free" ? 0 : block.size), 0);
    const segmentLines = h("div", { class: "tooltip-more" },
      line("segment", `${hexadecimal(segment.address)}, ${size(segment.size)} ${segment.large ? "large" : "small"}${segment.expandable ? ", expandable" : ""}`),
      line("in use in the segment", size(active)),
      line("stream, pool", `${segment.stream === 0 ? "default" : hexadecimal(segment.stream)}, ${segment.pool === "0,0" ? "default" : `(${segment.pool})`}`));
    const { block } = hit;
    if (!block || block.state === "free") {
      showTooltip(event, h("div", { class: "tooltip-title" }, block ? `free: ${size(block.size)} (${exact(block.size)})` : "not shown"), segmentLines);
      return;
    }
    const site = this.model.site(this.model.siteOfFrame(block.frame));
    const step = block.allocSeq === null ? null : this.model.stepOf(block.allocSeq);
    const age = block.allocTime === null ? "before the recording" : `${duration(Math.max(0, this.now() - block.allocTime) * this.model.seconds)}${step === null ? "" : `, allocated in step ${step}`}`;
    const state = { active: "allocated", pending: "freed, awaited by another stream", free: "free" }[block.state];
    showTooltip(event, h("div", { class: "tooltip-title" }, site.label), site.source ? h("code", {}, site.source) : null,
      line("block", `${hexadecimal(block.address)}, ${size(block.size)} (${exact(block.size)})`),
      line("requested", size(block.requested)), line("state", state), line("age", age),
      block.pins ? line("pins", "its mostly free segment") : null, segmentLines, ...this.callers(block));
  }

  private callers(block: Block): HTMLElement[] {
    const { frames } = this.model;
    const lines: HTMLElement[] = [];
    for (let at = block.frame; at >= 0 && lines.length < 6; at = frames.parent[at]) {
      if (frames.user[at]) lines.push(h("div", { class: "frame" }, `${this.model.text(frames.file[at])}:${frames.line[at]} in ${this.model.text(frames.function[at])}`));
    }
    return lines;
  }
}

function streamColor(index: number): string {
  return ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"][Math.max(index, 0) % 8];
}

/** Places segments one after the other, the largest first, at one scale, and continues long segments in the next row. */
function layout(segments: Segment[], width: number): Strip[] {
  const total = segments.reduce((sum, segment) => sum + segment.size, 0);
  const scale = (width * TARGET_ROWS) / Math.max(total, 1);
  const strips: Strip[] = [];
  let [x, y] = [0, 0];
  const startRow = () => { x = 0; y += ROW + GAP; };
  for (const segment of segments) {
    let from = 0;
    const minWidth = Math.min(width, Math.max(MIN_STRIP_WIDTH, Math.min(segment.size * scale, width)));
    // A segment that fits into a row is not split.
    if (x > 0 && x + minWidth > width) startRow();
    while (from < segment.size) {
      const room = width - x;
      const needed = Math.max((segment.size - from) * scale, MIN_STRIP_WIDTH);
      const used = Math.min(needed, room);
      const to = needed <= room ? segment.size : Math.min(segment.size, from + used / scale);
      strips.push({ segment, from, to, x, y, width: used });
      x += used + STRIP_GAP;
      from = to;
      if (from < segment.size) startRow();
    }
    if (x >= width) startRow();
  }
  return strips;
}
