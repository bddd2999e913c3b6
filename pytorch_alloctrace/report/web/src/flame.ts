// Flame graph of the live memory: calls as wide as their bytes, callers above callees.

import { faded, isLight, themed, type Colors } from "./colors";
import { fit, h } from "./dom";
import type { Model } from "./model";
import { hideTooltip, line, showTooltip } from "./tooltip";
import type { Call } from "./tree";
import { change, counted, exact, share, size } from "./units";

const ROW = 21;
const MAX_ROWS = 40;

export interface FlameInput {
  root: Call;
  compared: boolean;
  query: string;
  site: number | null;
}

interface Box {
  call: Call;
  x: number;
  y: number;
  width: number;
}

export class Flame {
  readonly canvas = h("canvas", { class: "flame", tabindex: 0, role: "img", "aria-label": "Flame graph of the live memory, by call" });
  readonly back = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => this.zoom(null) }, "Show all calls");
  private boxes: Box[] = [];
  private input: FlameInput | null = null;
  private top: Call | null = null;

  constructor(private readonly model: Model, private readonly colors: Colors, private readonly choose: (site: number) => void) {
    window.addEventListener("resize", () => this.draw());
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", hideTooltip);
    this.canvas.addEventListener("click", (event) => {
      const box = this.at(event);
      if (!box) return;
      if (box.call.calls.length === 0 && box.call.site >= 0) this.choose(box.call.site);
      else this.zoom(box.call === this.top ? null : box.call);
    });
  }

  show(input: FlameInput): void {
    this.input = input;
    this.top = null;
    this.draw();
  }

  private zoom(call: Call | null): void {
    this.top = call;
    this.draw();
  }

  matches(call: Call): boolean {
    const query = this.input?.query.toLowerCase() ?? "";
    return query !== "" && textOf(this.model, call).toLowerCase().includes(query);
  }

  draw(): void {
    const { input } = this;
    const width = this.canvas.parentElement?.clientWidth ?? 0;
    if (!input) return;
    if (!width) {
      requestAnimationFrame(() => this.canvas.isConnected && this.canvas.parentElement?.clientWidth && this.draw());
      return;
    }
    this.back.hidden = this.top === null;
    this.boxes = [];
    const top = this.top ?? input.root;
    const callers: Call[] = [];
    for (let at: Call | null = this.top?.parent ?? null; at && at.frame !== -2; at = at.parent) callers.unshift(at);
    callers.forEach((call, i) => this.boxes.push({ call, x: 0, y: i * ROW, width }));
    const weight = (call: Call) => (input.compared ? Math.max(call.bytes, call.before) : call.bytes);
    const place = (call: Call, x: number, y: number, room: number) => {
      if (call.frame !== -2) {
        if (room < 0.6 || y > ROW * MAX_ROWS) return;
        this.boxes.push({ call, x, y, width: room });
        y += ROW;
      }
      const totalWeight = Math.max(weight(call), call.calls.reduce((sum, callee) => sum + weight(callee), 0));
      for (const callee of call.calls) {
        const width = totalWeight ? (weight(callee) / totalWeight) * room : 0;
        place(callee, x, y, width);
        x += width;
      }
    };
    place(top, 0, callers.length * ROW, width);
    const height = Math.max(ROW, ...this.boxes.map((box) => box.y + ROW));
    const context = fit(this.canvas, width, height);
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const box of this.boxes) this.paint(context, box, input);
  }

  private paint(context: CanvasRenderingContext2D, box: Box, input: FlameInput): void {
    const { call } = box;
    const isDim = (input.query !== "" && !this.matches(call) && !hasMatchNearby(this, call)) || (input.site !== null && !includesSite(call, input.site));
    let color = input.compared ? changeColor(call) : this.color(call);
    if (isDim) color = faded(color, 0.25);
    context.fillStyle = color;
    context.fillRect(box.x, box.y, Math.max(box.width - 1, 0.6), ROW - 1);
    if (box.width < 30) return;
    context.save();
    context.beginPath();
    context.rect(box.x, box.y, box.width - 5, ROW);
    context.clip();
    context.fillStyle = isDim ? themed("soft") : isLight(color) ? "#15191e" : "#ffffff";
    const amount = input.compared ? change(call.bytes - call.before) : size(call.bytes);
    const name = this.model.frames && call.frame >= 0 ? nameOf(this.model, call) : this.model.site(call.site).label;
    const room = box.width - 12;
    const label = context.measureText(`${name}  ${amount}`).width <= room ? `${name}  ${amount}` : name;
    context.fillText(label, box.x + 6, box.y + ROW / 2);
    context.restore();
  }

  /** Returns the colour of its line for a call that allocates, and a neutral colour for a caller. */
  private color(call: Call): string {
    if (call.calls.length === 0 || call.own * 2 > call.bytes) return this.colors.of(call.site);
    return this.model.frames.user[call.frame] ? themed("caller") : themed("library");
  }

  private at(event: MouseEvent): Box | undefined {
    return this.boxes.find((box) => event.offsetX >= box.x && event.offsetX < box.x + box.width && event.offsetY >= box.y && event.offsetY < box.y + ROW);
  }

  private hover(event: MouseEvent): void {
    const box = this.at(event);
    this.canvas.style.cursor = box ? "pointer" : "";
    if (!box || !this.input) return hideTooltip();
    const { call } = box;
    const { frames } = this.model;
    const source = call.frame >= 0 ? this.model.text(frames.source[call.frame]) : "";
    const rows = [line("live", `${size(call.bytes)} (${exact(call.bytes)})`), line("of all", share(call.bytes, this.input.root.bytes)), line("blocks", counted(call.blocks, "block"))];
    if (call.own && call.calls.length) rows.push(line("allocated at this line itself", size(call.own)));
    if (this.input.compared) rows.push(line("at B", size(call.before)), line("change from B to A", change(call.bytes - call.before)));
    showTooltip(event, h("div", { class: "tooltip-title" }, textOf(this.model, call)), source ? h("code", {}, source) : null, ...rows);
  }
}

function nameOf(model: Model, call: Call): string {
  const { frames } = model;
  const file = model.text(frames.file[call.frame]);
  if (!file) return model.site(call.site).label;
  const name = model.text(frames.function[call.frame]);
  return `${name}  ${file.replace(/^.*[/\\]/, "")}:${frames.line[call.frame]}`;
}

export function textOf(model: Model, call: Call): string {
  if (call.frame < 0) return model.site(call.site).label;
  const { frames } = model;
  const file = model.text(frames.file[call.frame]);
  return file ? `${file}:${frames.line[call.frame]} in ${model.text(frames.function[call.frame])}` : model.site(call.site).label;
}

/** Returns true if a caller or a callee matches the search. */
function hasMatchNearby(flame: Flame, call: Call): boolean {
  for (let at = call.parent; at; at = at.parent) if (at.frame !== -2 && flame.matches(at)) return true;
  return hasMatchBelow(flame, call);
}

function hasMatchBelow(flame: Flame, call: Call): boolean {
  return call.calls.some((callee) => flame.matches(callee) || hasMatchBelow(flame, callee));
}

function includesSite(call: Call, site: number): boolean {
  return (call.own > 0 && call.site === site) || call.calls.some((callee) => includesSite(callee, site));
}

/** Returns orange for growth and blue for shrinkage, stronger for a larger relative change. */
function changeColor(call: Call): string {
  const changedBytes = call.bytes - call.before;
  const part = Math.abs(changedBytes) / Math.max(call.bytes, call.before, 1);
  if (!changedBytes) return themed("caller");
  const [from, to] = changedBytes > 0 ? [[253, 224, 196], [213, 94, 0]] : [[208, 227, 243], [0, 114, 178]];
  const mixed = from.map((value, i) => Math.round(value + (to[i] - value) * Math.min(1, 0.15 + part * 0.85)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
