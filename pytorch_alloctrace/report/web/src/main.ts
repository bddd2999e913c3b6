// Entry point: decodes the data and creates the views, which follow one cursor.

import "./style.css";

import { unpack } from "./columns";
import { Colors } from "./colors";
import { cursorBar, keys } from "./cursor";
import { append, h, replace, type Child } from "./dom";
import { diagnosis, failedAllocations, leaks, type Go } from "./findings";
import { fragmentation } from "./fragmentation";
import { header, overview } from "./header";
import { VERSION, type Manifest } from "./manifest";
import { Live } from "./live";
import { memory } from "./memory";
import { Model } from "./model";
import { segments } from "./segments";
import { sites } from "./sites";
import { Store } from "./store";
import { timeline } from "./timeline";
import { counted, number } from "./units";
import { whatIf } from "./what_if";

async function main(): Promise<void> {
  const root = document.getElementById("report")!;
  try {
    const { manifest, columns } = await unpack(document.getElementById("data")!.textContent ?? "");
    const data = manifest as Manifest;
    if (data.version !== VERSION) throw new Error(`its data are of version ${data.version}, and this script reads version ${VERSION}`);
    show(root, new Model(data, columns));
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    replace(root, h("p", { class: "loading bad" }, `This report cannot be shown: ${error instanceof Error ? error.message : String(error)}`));
    throw error;
  }
}

function show(root: HTMLElement, model: Model): void {
  const { manifest } = model;
  replace(root, header(model));
  if (!model.devices.length || !model.snapshots.length) {
    append(root, section("diagnosis", "Diagnosis", "", diagnosis(model, () => {})));
    return;
  }
  const peak = model.snapshots.find((snapshot) => snapshot.reasons.some((reason) => reason === `peak of allocated memory on ${model.devices[0].name}`));
  const store = new Store({
    device: 0, cursor: peak?.index ?? model.snapshots.length - 1, other: null, zoom: model.devices[0].curves.usedPart(model.steps.time.length ? model.steps.time[0] / 1e9 : null), site: null, query: "",
    groupBy: "line", allFrames: false, colorBy: "site", timeline: "levels", outside: false,
  });
  if (manifest.live) store.live = new Live(model, store);
  const colors = new Colors(model);
  const go: Go = (view, { seq, device, site, colorBy }) => {
    const index = model.devices.findIndex((candidate) => candidate.name === device);
    store.set({
      ...(index >= 0 ? { device: index } : {}), ...(seq !== null && seq !== undefined ? { cursor: model.snapshotOfEvent(seq) } : {}),
      ...(site !== undefined ? { site } : {}), ...(colorBy ? { colorBy } : {}),
    });
    scrollTo(view);
  };
  const parts: [id: string, title: string, about: string, body: HTMLElement][] = [
    ["diagnosis", "Diagnosis", "", diagnosis(model, go)],
    ["timeline", "Timeline", "", timeline(model, store, colors)],
    ["memory", "What was in memory", "At the cursor: each call is as wide as the memory that it and its callees hold.", memory(model, store, colors)],
    ...(hasCache(model) ? [
      ["segments", "Segments", "At the cursor: what torch holds from the driver, and the blocks in it.", segments(model, store, colors)],
      ["fragmentation", "Fragmentation", "", fragmentation(model, store, colors)],
      ["what-if", "What if", "", whatIf(model, store)],
    ] as typeof parts : []),
    ["leaks", "Leaks", "", leaks(model, colors, go)],
  ];
  if (manifest.failed_allocations.length) parts.push(["oom", "Out of memory", "", failedAllocations(model, colors, go)]);
  parts.push(["sites", "Sites", "Every line that allocated, over the whole run.", sites(model, store, colors)]);
  const contents = h("nav", { "aria-label": "Contents" }, ...parts.map(([id, title]) => h("a", { href: `#${id}`, onclick: (event: MouseEvent) => { event.preventDefault(); scrollTo(id); } }, title)));
  const [firstSection, ...otherSections] = parts.map((part) => section(...part));
  append(root, contents, overview(model, store), firstSection, cursorBar(model, store), ...otherSections, foot(model));
  keys(model, store);
}

/** Scrolls without changing the address: in a notebook's frame, a fragment would resolve against the notebook. */
function scrollTo(id: string): void {
  const behavior = matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
  document.getElementById(id)?.scrollIntoView({ behavior, block: "start" });
}

function section(id: string, title: string, about: string, ...body: Child[]): HTMLElement {
  return h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), about ? h("p", { class: "about" }, about) : null, ...body);
}

/** Returns true if a device has an allocator with a cache and settings: torch's of CUDA. */
function hasCache(model: Model): boolean {
  return model.devices.some(({ name }) => name.startsWith("cuda"));
}

function foot(model: Model): HTMLElement {
  const { manifest } = model;
  const { positions } = manifest;
  const maps = model.devices.map((device) => `${device.maps.snapshots.length} of them with a map of ${device.name}`).join(", ");
  const devices = manifest.devices_left_out ? ` ${counted(manifest.devices_left_out, "device")} that had the least memory ${manifest.devices_left_out === 1 ? "is" : "are"} not shown.` : "";
  const undrawnMarks = positions.marks_left_out ? ` ${number(positions.marks_left_out)} marks and regions are not drawn.` : "";
  return h("footer", {},
    hasCache(model) ? null : h("p", {}, `Segments, fragmentation and what-if are left out: the allocator of ${model.devices.map(({ name }) => name).join(", ")} keeps no cache and has no settings.`),
    manifest.live
      ? h("p", {}, `The cursor moves to any event: click into the timeline, or type its number. The arrows move between ${model.snapshots.length} prepared snapshots.${undrawnMarks}${devices} Sizes are in binary units (1 MiB = 1,048,576 bytes); exact bytes are shown on hover. In memory and sites they are requested bytes; those of segments are after rounding.`)
      : h("p", {}, `The cursor stops at ${model.snapshots.length} snapshots (${maps}): the peaks of each device, the end, failed allocations, findings, marks and regions, ends of steps, and the highest point of each of 120 equal parts of the run, as many of these as fit.${undrawnMarks}${devices} Sizes are in binary units (1 MiB = 1,048,576 bytes); exact bytes are shown on hover. In memory and sites they are requested bytes; those of segments are after rounding.`),
    h("p", {}, "Keys: ← → move the cursor, Shift + ← → to the next snapshot with a name, Home, End, b compares, / searches, Esc clears the highlight."),
    h("p", {}, `Made by pytorch_alloctrace. ${manifest.live ? "This page sends requests only to alloctrace serve on this machine" : "This page loads nothing and sends nothing"}. Charts: uPlot 1.6.32 (MIT).`));
}

void main();
