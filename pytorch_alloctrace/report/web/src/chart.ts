// Base of the charts over time, on uPlot: axes, zoom, and the lines of both cursors. Views add their series.

import uPlot from "uplot";

import { themed } from "./colors";
import type { Model } from "./model";
import type { Store } from "./store";
import { hideTooltip } from "./tooltip";
import { duration, instant, size } from "./units";

export interface ChartOptions {
  height: number;
  series: uPlot.Series[];
  bands?: uPlot.Band[];
  data: (begin: number, end: number, width: number) => uPlot.AlignedData;
  /** Lower bound of the end of the value axis. */
  top?: () => number;
  hover: (seconds: number, event: MouseEvent) => void;
  overlay?: (chart: uPlot) => void;
}

export class Chart {
  readonly element = document.createElement("div");
  private chart: uPlot | null = null;

  constructor(private readonly model: Model, private readonly store: Store, private readonly options: () => ChartOptions) {
    this.element.className = "chart";
    new ResizeObserver(() => this.resize()).observe(this.element);
  }

  /** Recreates the chart, after a change of series or colours. */
  rebuild(): void {
    this.chart?.destroy();
    this.chart = null;
    const width = this.element.clientWidth;
    if (!width) return;
    const options = this.options();
    const [begin, end] = this.store.state.zoom;
    const grid = { stroke: themed("grid"), width: 1 };
    const axis = { stroke: themed("soft"), font: "11px system-ui, sans-serif", grid, ticks: { ...grid, size: 4 } };
    this.chart = new uPlot(
      {
        width,
        height: options.height,
        scales: { x: { time: false, min: begin, max: end, auto: false }, y: { range: (_, __, max) => [0, Math.max(max ?? 0, options.top?.() ?? 0, 1) * 1.06] } },
        series: [{}, ...options.series],
        bands: options.bands,
        axes: [
          { ...axis, size: 30, space: 70, values: (u, splits) => splits.map((at) => timeLabel(at, u.scales.x.min ?? 0, u.scales.x.max ?? 1)) },
          { ...axis, size: 68, splits: (_, __, min, max) => binarySplits(min, max, options.height), values: (_, splits) => splits.map(size) },
        ],
        legend: { show: false },
        cursor: { y: false, points: { show: false }, drag: { x: true, y: false, setScale: false }, bind: {} },
        padding: [10, 12, 0, 0],
        hooks: {
          setSelect: [
            (u) => {
              const { left, width } = u.select;
              if (width < 4) return;
              this.store.set({ zoom: this.clampZoom(u.posToVal(left, "x"), u.posToVal(left + width, "x")) });
              u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
            },
          ],
          draw: [(u) => this.overlay(u, options)],
        },
      },
      options.data(begin, end, width),
      this.element,
    );
    this.listen(this.chart, options);
  }

  /** Draws the visible part. */
  refresh(): void {
    const chart = this.chart;
    if (!chart) return this.rebuild();
    const [begin, end] = this.store.state.zoom;
    chart.batch(() => {
      chart.setData(this.options().data(begin, end, chart.width), false);
      chart.setScale("x", { min: begin, max: end });
    });
  }

  redraw(): void {
    this.chart?.redraw(false);
  }

  private resize(): void {
    const width = this.element.clientWidth;
    if (!width || this.chart?.width === width) return;
    this.rebuild();
  }

  private listen(chart: uPlot, options: ChartOptions): void {
    const over = chart.over;
    let pressedX: number | null = null;
    over.addEventListener("mousemove", (event) => options.hover(chart.posToVal(event.offsetX, "x"), event));
    over.addEventListener("mouseleave", hideTooltip);
    over.addEventListener("mousedown", (event) => (pressedX = event.clientX));
    over.addEventListener("click", (event) => {
      if (pressedX !== null && Math.abs(event.clientX - pressedX) > 3) return;
      const seconds = Math.max(0, Math.min(this.model.seconds, chart.posToVal(event.offsetX, "x")));
      const cursorName = event.shiftKey ? "other" : "cursor";
      if (this.store.live) void this.store.live.go({ seconds }, cursorName);
      else this.store.set({ [cursorName]: this.model.nearestSnapshot(seconds) });
    });
    over.addEventListener("dblclick", () => this.store.set({ zoom: [0, this.model.seconds] }));
    over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey && !event.metaKey) return; // a plain wheel scrolls the page
      event.preventDefault();
      const [begin, end] = this.store.state.zoom;
      const at = chart.posToVal(event.offsetX, "x");
      const delta = event.deltaY || event.deltaX;
      if (event.shiftKey) {
        const by = (Math.sign(delta) * (end - begin)) / 10;
        this.store.set({ zoom: this.clampZoom(begin + by, end + by) });
      } else {
        const factor = delta > 0 ? 1.25 : 0.8;
        this.store.set({ zoom: this.clampZoom(at - (at - begin) * factor, at + (end - at) * factor) });
      }
    }, { passive: false });
  }

  /** Clamps a zoom to the run, and its length to at least a millionth of the run. */
  private clampZoom(begin: number, end: number): [number, number] {
    const runSeconds = this.model.seconds;
    const zoomSeconds = Math.min(Math.max(end - begin, runSeconds / 1e6), runSeconds);
    const from = Math.max(0, Math.min(begin, runSeconds - zoomSeconds));
    return [from, from + zoomSeconds];
  }

  private overlay(u: uPlot, options: ChartOptions): void {
    options.overlay?.(u);
    const { cursor, other } = this.store.state;
    const timeOf = (snapshot: number) => this.model.snapshot(snapshot)?.time ?? 0;
    if (other !== null) verticalLine(u, timeOf(other), themed("other"), [5, 3], "B");
    verticalLine(u, timeOf(cursor), themed("accent"), [], other !== null ? "A" : "");
  }
}

export function verticalLine(u: uPlot, seconds: number, color: string, dash: number[], label = ""): void {
  const ratio = uPlot.pxRatio;
  const { left, top, width, height } = u.bbox;
  const x = Math.round(u.valToPos(seconds, "x", true)) + 0.5;
  if (x < left - 1 || x > left + width + 1) return;
  const context = u.ctx;
  context.save();
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = (dash.length ? 1 : 1.5) * ratio;
  context.setLineDash(dash.map((part) => part * ratio));
  context.beginPath();
  context.moveTo(x, top);
  context.lineTo(x, top + height);
  context.stroke();
  if (label) {
    context.font = `600 ${11 * ratio}px system-ui, sans-serif`;
    const room = context.measureText(label).width + 6 * ratio;
    context.textAlign = x + room > left + width ? "right" : "left";
    context.fillText(label, x + (context.textAlign === "left" ? 4 : -4) * ratio, top + (label.length > 1 ? 26 : 11) * ratio);
  }
  context.restore();
}

function timeLabel(seconds: number, begin: number, end: number): string {
  return end - begin >= 120 ? duration(seconds) : instant(seconds, (end - begin) / 30, end < 1).replace(/(\.\d*?)0+ (m?s)$/, "$1 $2").replace(/\. (m?s)$/, " $1");
}

/** Returns axis ticks at multiples of a power of two: 512 MiB, not 536.9 MB. */
function binarySplits(min: number, max: number, height: number): number[] {
  const count = Math.max(2, height / 46);
  const step = 2 ** Math.max(0, Math.ceil(Math.log2((max - min) / count)));
  const splits: number[] = [];
  for (let at = 0; at <= max; at += step) splits.push(at);
  return splits;
}
