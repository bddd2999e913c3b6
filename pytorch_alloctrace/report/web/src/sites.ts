// Table of every line that allocated, over the whole run.

import type { Colors } from "./colors";
import { h, swatch } from "./dom";
import type { Model } from "./model";
import type { Store } from "./store";
import { Table, type Column } from "./table";
import { exact, number, size } from "./units";

type Row = (number | null)[];
const TITLES: Record<string, [title: string, about: string, isCount?: boolean]> = {
  live_bytes: ["Live at the end", "Requested bytes that are live when the trace ends"],
  live_blocks: ["Blocks at the end", "", true],
  bytes: ["Allocated", "All requested bytes of the run"],
  allocations: ["Allocations", "", true],
  largest: ["Largest", "The largest block that is live at the end"],
  allocations_per_step: ["Allocations per step", "Over the last whole steps", true],
  bytes_per_step: ["Bytes per step", "Over the last whole steps"],
  retained_per_step: ["Kept for backward", "Per step: allocated in forward, freed in backward"],
};
const ORDER = ["bytes", "allocations", "live_bytes", "live_blocks", "largest", "bytes_per_step", "allocations_per_step", "retained_per_step"];

export function sites(model: Model, store: Store, colors: Colors): HTMLElement {
  const table = new Table<Row>();
  const note = h("p", { class: "hint" });
  const filter = h("input", { type: "search", id: "site-filter", placeholder: "Filter", "aria-label": "Filter the sites", oninput: () => draw() });
  const onlyUser = h("input", { type: "checkbox", id: "only-user", onchange: () => draw() });
  const draw = () => {
    const { data } = model.devices[store.state.device];
    const query = filter.value.toLowerCase();
    const rows = data.sites.rows.filter((row) => {
      const site = model.site(row[0]);
      return (!onlyUser.checked || site.user) && (!query || `${site.label} ${site.source}`.toLowerCase().includes(query));
    });
    table.show({
      columns: columns(model, data.sites, colors), rows, sort: [1, true],
      highlighted: (row) => row[0] === store.state.site,
      choose: (row) => store.set({ site: store.state.site === row[0] ? null : row[0] }),
      empty: query ? `No line matches “${filter.value}”.` : "Nothing was allocated here.",
    });
    note.textContent = data.sites.left_out ? `${number(data.sites.left_out)} lines that allocated little are left out; the command sites shows them.` : "";
    note.hidden = !data.sites.left_out;
  };
  store.follow(["device", "site"], draw);
  return h("div", {}, h("div", { class: "toolbar" }, filter, h("label", { class: "check" }, onlyUser, "Only your own code")), table.element, note);
}

function columns(model: Model, data: { columns: string[]; rows: Row[] }, colors: Colors): Column<Row>[] {
  const names = ORDER.filter((name) => {
    const at = data.columns.indexOf(name) + 1;
    return at > 0 && data.rows.some((row) => row[at] !== null);
  });
  return [
    {
      title: "Line", wide: true, value: (row) => model.site(row[0]).label,
      show: (row) => {
        const site = model.site(row[0]);
        return h("div", { class: "site" }, swatch(colors.of(site.id)), h("div", {}, h("div", { class: "label" }, site.label), site.source ? h("code", {}, site.source) : null));
      },
    },
    ...names.map((name): Column<Row> => {
      const at = data.columns.indexOf(name) + 1;
      const [title, about, isCount] = TITLES[name];
      return {
        title, about, value: (row) => row[at],
        show: (row) => (row[at] === null ? "" : isCount ? count(row[at]!) : row[at] === 0 ? "0" : size(row[at]!)),
        exact: (row) => (row[at] === null ? "unknown" : isCount ? count(row[at]!) : exact(row[at]!)),
      };
    }),
  ];
}

function count(value: number): string {
  return Number.isInteger(value) ? number(value) : value.toFixed(value < 10 ? 2 : 1);
}
