// Diagnosis, leaks and failed allocations: the sentences of the terminal, with buttons that lead to the views.

import { themed, type Colors } from "./colors";
import { append, h, svg, swatch, type Child } from "./dom";
import type { FailedAllocation, Finding, Leak } from "./manifest";
import type { Model } from "./model";
import { counted, duration, exact, number, size } from "./units";

const TONES: Record<string, string> = { incomplete: "bad", oom: "bad", leak: "bad", growth: "bad", no_leak: "good", minor_leak: "quiet", not_judged: "quiet" };
const VIEWS: Record<string, [id: string, text: string]> = {
  oom: ["oom", "the failed allocation"], leak: ["leaks", "the leak"], growth: ["leaks", "the growth"], inconclusive: ["memory", "what was in memory"], minor_leak: ["leaks", "the leak"],
  fragmentation: ["fragmentation", "the fragmentation"], cache: ["fragmentation", "the cache"], rounding: ["segments", "the map"],
  pending: ["segments", "the map"], churn: ["timeline", "the timeline"], outside: ["timeline", "the timeline"],
};

const MAX_LINES = 8;
const MAX_CARDS = 5;
/** Up to this number, hidden cards are created at once, so that the browser's search finds them. */
const MAX_HIDDEN = 40;

/** Moves the cursor to an event and scrolls to a view. */
export type Go = (view: string, change: { seq?: number | null; device?: string; site?: number | null; colorBy?: "state" }) => void;

export function diagnosis(model: Model, go: Go): HTMLElement {
  const { findings } = model.manifest;
  if (!findings.length) return h("p", { class: "empty" }, "Nothing was allocated through torch during the recording.");
  return h("div", { class: "findings" }, ...collapse(findings, (finding) => card(model, finding, go), "finding"));
}

/** Returns the first cards, and an element that opens the other cards. */
function collapse<T>(items: T[], make: (item: T) => HTMLElement, noun: string): HTMLElement[] {
  if (items.length <= MAX_CARDS + 1) return items.map(make);
  const hiddenItems = items.slice(MAX_CARDS);
  const body = h("div", { class: "findings" });
  const fill = () => append(body, ...hiddenItems.map(make));
  const details = h("details", {}, h("summary", {}, `${counted(hiddenItems.length, `more ${noun}`)}`), body);
  if (hiddenItems.length <= MAX_HIDDEN) fill();
  else details.addEventListener("toggle", fill, { once: true });
  return [...items.slice(0, MAX_CARDS).map(make), details];
}

function card(model: Model, finding: Finding, go: Go): HTMLElement {
  const tone = TONES[finding.kind] ?? "warn";
  const view = VIEWS[finding.kind];
  const change = { seq: finding.seq, device: finding.device, site: finding.leak || finding.kind === "inconclusive" ? finding.site : null, colorBy: finding.kind === "pending" ? ("state" as const) : undefined };
  return h("article", { class: `finding ${tone}` },
    h("h3", {}, h("span", { class: "badge" }, finding.label), ` ${finding.title}`),
    finding.source ? h("code", {}, finding.source) : null,
    ...finding.sentences.map((sentence) => h("p", {}, sentence)),
    view && model.devices.length ? h("button", { type: "button", class: "go", onclick: () => go(view[0], change) }, `Show ${view[1]}`) : null);
}

export function leaks(model: Model, colors: Colors, go: Go): HTMLElement {
  const leakFindings = model.manifest.findings.filter((finding) => finding.leak);
  if (!leakFindings.length) {
    const conclusion = model.manifest.findings.find((finding) => ["no_leak", "inconclusive", "not_judged"].includes(finding.kind));
    return h("p", { class: "empty" }, conclusion ? `${conclusion.title}.` : "No leak was found.");
  }
  return h("div", {}, ...collapse(leakFindings, (finding) => leakCard(model, finding, finding.leak!, colors, go), "leak"));
}

function leakCard(model: Model, finding: Finding, leak: Leak, colors: Colors, go: Go): HTMLElement {
  const facts: [string, string, string][] = [
    ["grows by", `${size(leak.bytes_per_unit)} per ${leak.unit}`, exact(leak.bytes_per_unit)],
    [leak.unit === "step" ? "live after the last step" : "live at the last work", `${size(finding.bytes)} in ${counted(leak.blocks, "block")}`, exact(finding.bytes)],
  ];
  if (leak.allocated_bytes_at_end !== finding.bytes) facts.push(["of these, live at the end", size(leak.allocated_bytes_at_end), exact(leak.allocated_bytes_at_end)]);
  if (finding.confidence !== null) facts.push(["certainty", `${(100 * finding.confidence).toFixed(0)} %`, ""]);
  if (leak.forecast_seconds !== null) facts.push(["device full in about", duration(leak.forecast_seconds), ""]);
  return h("article", { class: `leak ${finding.kind === "minor_leak" ? "minor" : ""}` },
    h("h3", {}, finding.site !== null ? swatch(colors.of(finding.site)) : null, ` ${finding.title}`),
    finding.source ? h("code", {}, finding.source) : null,
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("dl", { class: "figures" }, ...facts.flatMap(([name, text, title]) => [h("dt", {}, name), h("dd", { title }, text)])),
        h("button", { type: "button", class: "go", onclick: () => go("memory", { seq: finding.seq, device: finding.device, site: finding.site }) }, "Show it in memory")),
      h("div", { class: "panel" }, h("h4", {}, leak.births.unit === "step" ? "Live after the last step, by the step of allocation" : "Live at the end, by the time of allocation"), allocationChart(leak, finding, colors)),
      leak.path.length ? h("div", { class: "panel" }, h("h4", {}, "Called from"), ...leak.path.slice(0, MAX_LINES).map(([label, source]) => h("div", { class: "call" }, h("div", { class: "label" }, label), source ? h("code", {}, source) : null)), more(leak.path.length, "caller")) : null,
      leak.sites.length > 1 ? h("div", { class: "panel" }, h("h4", {}, "Allocated at these lines, in the same steps"), ...leak.sites.slice(0, MAX_LINES).map(([id, rate, bytes]) =>
        h("div", { class: "call" }, h("div", { class: "label" }, swatch(colors.of(id)), ` ${model.site(id).label}`), h("div", { class: "hint", title: exact(bytes) }, `${size(rate)} per ${leak.unit}, ${size(bytes)} live`))), more(leak.sites.length, "line")) : null));
}

function more(count: number, noun: string): HTMLElement | null {
  return count > MAX_LINES ? h("p", { class: "hint" }, `and ${counted(count - MAX_LINES, `more ${noun}`)}`) : null;
}

/** Draws the live bytes of a leak, one bar per step or group of steps. */
function allocationChart(leak: Leak, finding: Finding, colors: Colors): Element {
  const { bytes, first, width, unit } = leak.births;
  const maxBytes = Math.max(1, ...bytes);
  const [w, height, foot] = [320, 84, 16];
  const step = w / Math.max(bytes.length, 1);
  const fill = finding.site !== null ? colors.of(finding.site) : themed("allocated");
  const name = (from: number) => (unit === "step" ? (width === 1 ? `step ${number(from)}` : `steps ${number(from)} to ${number(from + width - 1)}`) : `${duration(from / 1e9)} to ${duration((from + width) / 1e9)}`);
  const bars: Child[] = bytes.map((value, i) => {
    const barHeight = (value / maxBytes) * (height - 12);
    return svg("rect", { x: i * step, y: height - barHeight, width: Math.max(step - 1, 0.5), height: barHeight, fill }, svg("title", {}, document.createTextNode(`${name(first + i * width)}: ${size(value)}`)));
  });
  const label = (text: string, x: number, anchor: string, y: number) => svg("text", { x, y, "text-anchor": anchor, class: "axis" }, document.createTextNode(text));
  const end = (at: number) => (unit === "step" ? `step ${number(at)}` : duration(at / 1e9));
  return svg("svg", { viewBox: `0 0 ${w} ${height + foot}`, class: "births", role: "img", "aria-label": "Bytes that are still live, by time of allocation" },
    ...bars, svg("line", { x1: 0, x2: w, y1: height, y2: height, class: "axis-line" }), label(`highest ${size(maxBytes)}`, 0, "start", 9),
    label(end(first), 0, "start", height + 13), label(end(first + width * bytes.length - (unit === "step" ? 1 : 0)), w, "end", height + 13));
}

export function failedAllocations(model: Model, colors: Colors, go: Go): HTMLElement {
  const { failed_allocations: failures, earlier_failures: earlier } = model.manifest;
  return h("div", {},
    earlier ? h("p", { class: "hint" }, `${counted(earlier, "earlier failed allocation")} left out; the command oom shows them.`) : null,
    ...collapse([...failures].reverse(), (failure) => failedAllocationCard(model, failure, colors, go), "failed allocation"));
}

function failedAllocationCard(model: Model, failure: FailedAllocation, colors: Colors, go: Go): HTMLElement {
  const site = model.site(failure.site);
  return h("article", { class: "refusal" },
    h("h3", {}, h("span", { class: "badge" }, failure.verdict), ` ${failure.title}`),
    h("p", { class: "hint" }, `${site.label}${failure.step === null ? "" : `, in step ${failure.step}`}, at ${duration(failure.time / 1e9)}`),
    failure.source ? h("code", {}, failure.source) : null,
    ...failure.sentences.map((sentence) => h("p", {}, sentence)),
    deviceBar(failure),
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("dl", { class: "figures" }, ...([
        ["requested", failure.requested_bytes], ["needed from the driver", failure.segment_bytes], ["largest free block for it", failure.largest_free_bytes], ["free on the device", failure.device_free_bytes],
      ] as [string, number][]).flatMap(([name, bytes]) => [h("dt", {}, name), h("dd", { title: exact(bytes), "data-bytes": bytes }, size(bytes))]))),
      h("div", { class: "panel" }, h("h4", {}, "Lines that held the most"), ...failure.top.slice(0, 6).map(([id, bytes, blocks]) =>
        h("div", { class: "call" }, h("div", { class: "label" }, swatch(colors.of(id)), ` ${model.site(id).label}`), h("div", { class: "hint", title: exact(bytes) }, `${size(bytes)} in ${counted(blocks, "block")}`))))),
    h("button", { type: "button", class: "go", onclick: () => go("segments", { seq: failure.seq - 1, device: failure.device }) }, "Show the map before the failure"));
}

function deviceBar(failure: FailedAllocation): HTMLElement | null {
  if (failure.device_bytes === null || failure.outside_bytes === null) return null;
  const used = Math.max(failure.reserved_bytes - failure.free_here_bytes - failure.free_elsewhere_bytes, 0);
  const parts: [string, number, string][] = [
    ["in use", used, "allocated"], ["free in its own pool", failure.free_here_bytes, "stranded"], ["free in other pools and streams", failure.free_elsewhere_bytes, "elsewhere"],
    ["outside PyTorch", failure.outside_bytes, "outside"], ["free on the device", failure.device_free_bytes, "free"],
  ];
  const bar = h("div", { class: "device-bar" });
  for (const [name, bytes, color] of parts) {
    if (bytes <= 0) continue;
    const part = h("span", { title: `${name}: ${exact(bytes)}` });
    part.style.flexGrow = String(bytes);
    part.style.background = themed(color);
    bar.append(part);
  }
  const legend = h("div", { class: "legend" }, ...parts.filter(([, bytes]) => bytes > 0).map(([name, bytes, color]) => h("span", { title: exact(bytes) }, swatch(themed(color)), `${name} ${size(bytes)}`)));
  return h("div", {}, bar, legend);
}
