// Table that can be sorted by any column.

import { number } from "./units";
import { h, replace, type Child } from "./dom";

export interface Column<Row> {
  title: string;
  /** Description, shown on hover. */
  about?: string;
  value: (row: Row) => number | string | null;
  show: (row: Row) => Child;
  /** Returns the exact value, shown on hover. */
  exact?: (row: Row) => string;
  wide?: boolean;
}

export interface TableOptions<Row> {
  columns: Column<Row>[];
  rows: Row[];
  sort: [column: number, descending: boolean];
  highlighted?: (row: Row) => boolean;
  choose?: (row: Row) => void;
  empty: string;
  maxRows?: number;
}

export class Table<Row> {
  readonly element = h("div", { class: "table-box" });
  private options: TableOptions<Row> | null = null;
  private sort: [number, boolean] | null = null;
  private showsAll = false;

  show(options: TableOptions<Row>): void {
    if (this.options && this.options.columns.length !== options.columns.length) this.sort = null;
    this.options = options;
    this.draw();
  }

  private draw(): void {
    const { options } = this;
    if (!options) return;
    if (!options.rows.length) return replace(this.element, h("p", { class: "empty" }, options.empty));
    const [sortColumn, descending] = this.sort ?? options.sort;
    const { value } = options.columns[sortColumn];
    const rows = [...options.rows].sort((a, b) => compare(value(a), value(b)) * (descending ? -1 : 1));
    const maxRows = options.maxRows ?? 25;
    const visible = this.showsAll ? rows : rows.slice(0, maxRows);
    const head = options.columns.map((column, i) =>
      h("th", { class: column.wide ? "wide" : "", "aria-sort": i === sortColumn ? (descending ? "descending" : "ascending") : "none", title: column.about },
        h("button", { type: "button", onclick: () => this.sortBy(i) }, column.title, h("span", { class: "arrow", "aria-hidden": "true" }, i === sortColumn ? (descending ? " ↓" : " ↑") : ""))));
    const body = visible.map((row) => {
      const cells = options.columns.map((column) => {
        const value = column.value(row);
        return h("td", { class: column.wide ? "wide" : "", title: column.exact?.(row), "data-title": column.title, "data-value": value ?? undefined }, column.show(row));
      });
      const element = h("tr", { class: options.highlighted?.(row) ? "highlighted" : "" }, ...cells);
      if (options.choose) {
        element.classList.add("choosable");
        element.tabIndex = 0;
        element.addEventListener("click", () => options.choose!(row));
        element.addEventListener("keydown", (event) => event.key === "Enter" && options.choose!(row));
      }
      return element;
    });
    const more = rows.length > maxRows
      ? h("button", { type: "button", class: "quiet", onclick: () => { this.showsAll = !this.showsAll; this.draw(); } }, this.showsAll ? `Show the first ${maxRows}` : `Show all ${number(rows.length)}`)
      : null;
    replace(this.element, h("table", {}, h("thead", {}, h("tr", {}, ...head)), h("tbody", {}, ...body)), more);
  }

  private sortBy(column: number): void {
    const [sortColumn, descending] = this.sort ?? this.options!.sort;
    const isText = typeof this.options!.columns[column].value(this.options!.rows[0]) === "string";
    this.sort = [column, sortColumn === column ? !descending : !isText];
    this.draw();
  }
}

function compare(a: number | string | null, b: number | string | null): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? -1 : 1;
  return typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
}
