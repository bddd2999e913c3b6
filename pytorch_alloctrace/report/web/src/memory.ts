// Live memory at the cursor, as a flame graph and a table, and the change since another snapshot.

import { themed, type Colors } from "./colors";
import { h, replace, swatch } from "./dom";
import { Flame } from "./flame";
import type { Grouping } from "./manifest";
import type { Device, Holding, Model } from "./model";
import type { GroupBy, State, Store } from "./store";
import { Table, type Column } from "./table";
import { callTree } from "./tree";
import { change, counted, exact, number, share, size } from "./units";

interface Row {
  label: string;
  source: string;
  site: number | null;
  bytes: number;
  blocks: number;
  backward: number;
  before: number;
}

const GROUPS: [GroupBy, string][] = [["line", "Line"], ["function", "Function"], ["file", "File"], ["module", "Module"], ["role", "Role"], ["phase", "Phase"]];
const LINE_GROUPS: GroupBy[] = ["line", "function", "file"];

export function memory(model: Model, store: Store, colors: Colors): HTMLElement {
  const flame = new Flame(model, colors, (site) => store.set({ site: store.state.site === site ? null : site }));
  const table = new Table<Row>();
  const title = h("p", { class: "lead" });
  const matches = h("span", { class: "hint", role: "status" });
  const groups = h("div", { class: "segmented", role: "group", "aria-label": "What the rows of the table are" },
    ...GROUPS.filter(([by]) => LINE_GROUPS.includes(by) || model.devices.some((device) => device.maps.groupings.includes(by as Grouping))).map(([by, text]) => h("button", { type: "button", "data-by": by, onclick: () => store.set({ groupBy: by }) }, text)));
  const search = h("input", { type: "search", id: "search", placeholder: "Search lines, functions, files  ( / )", "aria-label": "Search", oninput: () => store.set({ query: search.value }) });
  const allFramesBox = h("input", { type: "checkbox", id: "all-frames", onchange: () => store.set({ allFrames: allFramesBox.checked }) });
  const note = h("p", { class: "hint" });
  const clear = h("button", { type: "button", class: "quiet", hidden: true, onclick: () => store.set({ site: null }) }, "Clear highlight");

  store.follow(["device", "cursor", "other", "query", "groupBy", "allFrames", "site"], (state) => {
    const device = model.devices[state.device];
    const now = device.holdings(state.cursor);
    const before = state.other === null ? [] : device.holdings(state.other);
    const compared = state.other !== null;
    for (const button of groups.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.dataset.by === state.groupBy));
    clear.hidden = state.site === null;
    replace(title, ...lead(model, device, state));
    flame.show({ root: callTree(model, now, before, state.allFrames), compared, query: state.query, site: state.site });
    const rows = rowsBy(model, device, state, now, before).filter((row) => isMatch(row, state.query));
    const total = device.bytesAt(state.cursor);
    const bytes = rows.reduce((sum, row) => sum + row.bytes, 0);
    matches.textContent = state.query ? `${counted(rows.length, "match").replace(/matchs$/, "matches")}: ${size(bytes)}, ${share(bytes, total)}` : "";
    table.show({
      columns: columns(state, total, colors),
      rows,
      sort: compared ? [1, true] : [1, true],
      highlighted: (row) => row.site !== null && row.site === state.site,
      choose: (row) => row.site !== null && store.set({ site: state.site === row.site ? null : row.site }),
      empty: state.query ? `Nothing that is live here matches “${state.query}”.` : "Nothing is live here.",
    });
    const merged = state.cursor < model.snapshots.length ? device.data.stacks_put_together : 0;
    replace(note, merged ? `To keep the page small, ${number(merged)} small stacks are drawn under the largest stack of the same line: their lines are exact, their callers are not.` : "");
    note.hidden = !merged;
  });
  return h("div", {},
    title,
    h("div", { class: "toolbar" }, search, matches, h("span", { class: "spring" }), flame.back, clear, h("label", { class: "check" }, allFramesBox, "Library frames")),
    h("div", { class: "flame-box" }, flame.canvas),
    note,
    h("div", { class: "toolbar below" }, h("span", { class: "hint" }, "Rows are"), groups),
    table.element);
}

function lead(model: Model, device: Device, state: State): (Node | string)[] {
  const bytes = device.bytesAt(state.cursor);
  const amount = h("b", { title: exact(bytes), "data-bytes": bytes, id: "live-bytes" }, size(bytes));
  const parts: (Node | string)[] = [amount, ` live in ${counted(device.blocksAt(state.cursor), "block")} on ${device.name}`];
  if (state.other !== null) {
    const before = device.bytesAt(state.other);
    const changeElement = h("b", { title: exact(bytes - before), "data-bytes": bytes - before, id: "changed-bytes", class: bytes > before ? "grew" : bytes < before ? "shrank" : "" }, change(bytes - before));
    parts.push(" at A, ", changeElement, ` since B (event ${number(model.snapshot(state.other).seq)}, ${size(before)})`);
  }
  return [...parts, "."];
}

function isMatch(row: Row, query: string): boolean {
  const text = query.toLowerCase();
  return !text || row.label.toLowerCase().includes(text) || row.source.toLowerCase().includes(text);
}

function rowsBy(model: Model, device: Device, state: State, now: Holding[], before: Holding[]): Row[] {
  if (!LINE_GROUPS.includes(state.groupBy)) return groupRows(device, state, state.groupBy as Grouping);
  const rows = new Map<string, Row>();
  const rowOf = (holding: Holding): Row => {
    const site = model.site(model.siteOfFrame(holding.frame));
    const by = state.groupBy;
    const label = by === "line" || !site.file ? site.label : by === "file" ? site.file : `${site.func} (${site.file})`;
    const key = by === "line" ? String(site.id) : label;
    let row = rows.get(key);
    if (!row) rows.set(key, (row = { label, source: by === "line" ? site.source : "", site: by === "line" ? site.id : null, bytes: 0, blocks: 0, backward: 0, before: 0 }));
    return row;
  };
  for (const holding of now) {
    const row = rowOf(holding);
    row.bytes += holding.bytes;
    row.blocks += holding.blocks;
    row.backward += holding.backward;
  }
  for (const holding of before) rowOf(holding).before += holding.bytes;
  return [...rows.values()];
}

function groupRows(device: Device, state: State, by: Grouping): Row[] {
  const rows = new Map<string, Row>();
  const fill = (snapshot: number | null, isBefore: boolean) => {
    const nearest = snapshot === null ? null : device.maps.nearest(snapshot);
    for (const [label, bytes, blocks] of nearest === null ? [] : device.maps.groups(by, nearest)) {
      let row = rows.get(label);
      if (!row) rows.set(label, (row = { label, source: "", site: null, bytes: 0, blocks: 0, backward: 0, before: 0 }));
      if (isBefore) row.before = bytes;
      else [row.bytes, row.blocks] = [bytes, blocks];
    }
  };
  fill(state.cursor, false);
  fill(state.other, true);
  return [...rows.values()];
}

function columns(state: State, total: number, colors: Colors): Column<Row>[] {
  const name: Column<Row> = {
    title: GROUPS.find(([by]) => by === state.groupBy)![1], wide: true,
    value: (row) => row.label,
    show: (row) => h("div", { class: "site" }, row.site !== null ? swatch(colors.of(row.site)) : null,
      h("div", {}, h("div", { class: "label" }, row.label), row.source ? h("code", {}, row.source) : null)),
  };
  const bytes: Column<Row> = { title: "Bytes", about: "Requested bytes that are live", value: (row) => row.bytes, show: (row) => size(row.bytes), exact: (row) => exact(row.bytes) };
  const blocks: Column<Row> = { title: "Blocks", value: (row) => row.blocks, show: (row) => number(row.blocks) };
  if (state.other !== null) {
    return [name,
      { title: "Change", about: "From B to A", value: (row) => row.bytes - row.before, exact: (row) => exact(row.bytes - row.before),
        show: (row) => h("span", { class: row.bytes > row.before ? "grew" : row.bytes < row.before ? "shrank" : "" }, change(row.bytes - row.before)) },
      { ...bytes, title: "At A" },
      { title: "At B", value: (row) => row.before, show: (row) => size(row.before), exact: (row) => exact(row.before) },
      blocks];
  }
  return [name, bytes,
    { title: "Share", value: (row) => row.bytes / Math.max(total, 1), show: (row) => bar(row, total, colors) },
    blocks,
    { title: "In backward", about: "Bytes that backward allocated for lines of forward", value: (row) => row.backward, show: (row) => (row.backward ? size(row.backward) : ""), exact: (row) => exact(row.backward) }];
}

function bar(row: Row, total: number, colors: Colors): HTMLElement {
  const inner = h("span", { class: "bar-fill" });
  inner.style.width = `${Math.max(1, (100 * row.bytes) / Math.max(total, 1))}%`;
  inner.style.background = row.site === null ? themed("caller") : colors.of(row.site);
  return h("span", { class: "bar-cell" }, h("span", { class: "bar" }, inner), share(row.bytes, total));
}
