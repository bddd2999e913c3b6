// Translation of the frame, site and text numbers of requested snapshots to those of the page.

import type { Columns } from "./columns";
import type { FrameColumn, SnapshotManifest } from "./manifest";
import { siteOf, type Model, type Site } from "./model";

const COLUMNS: FrameColumn[] = ["parent", "function", "file", "line", "source", "user", "site"];
const PARENT = 0;
const TEXTS = [1, 2, 4];
const SITE = 6;

export class Names {
  private readonly sites = new Map<string, number>();
  private readonly frames = new Map<string, number>();
  private readonly texts = new Map<string, number>();

  constructor(private readonly model: Model) {
    for (const site of model.sites) this.sites.set(keyOfSite(site), site.id);
    model.manifest.texts.forEach((text, number) => this.texts.set(text, number));
    const { parent } = model.frames;
    for (let i = 0; i < parent.length; i++) this.frames.set(keyOf(COLUMNS.map((name) => model.frames[name][i])), i);
  }

  /** Returns the page's frame numbers for the frames of a snapshot, and adds new frames to the model. */
  translate(data: SnapshotManifest, columns: Columns): number[] {
    const texts = data.texts.map((text) => this.text(text));
    const sites = data.stacks.sites.map((row) => this.site(siteOf(row, data.texts, -1)));
    const columnValues = COLUMNS.map((name) => columns.read(data.stacks.frames[name]));
    const { frames } = this.model;
    const frameCount = frames.parent.length;
    const addedRows: number[][] = [];
    const numbers: number[] = [];
    for (let i = 0; i < columnValues[PARENT].length; i++) {
      const row = columnValues.map((column) => column[i]);
      row[PARENT] = row[PARENT] < 0 ? -1 : numbers[row[PARENT]]; // callers have lower numbers
      for (const column of TEXTS) row[column] = texts[row[column]];
      row[SITE] = sites[row[SITE]];
      let number = this.frames.get(keyOf(row));
      if (number === undefined) {
        this.frames.set(keyOf(row), (number = frameCount + addedRows.length));
        addedRows.push(row);
      }
      numbers.push(number);
    }
    if (addedRows.length) {
      this.model.frames = Object.fromEntries(COLUMNS.map((name, column) => {
        const values = new Float64Array(frameCount + addedRows.length);
        values.set(frames[name]);
        addedRows.forEach((row, i) => (values[frameCount + i] = row[column]));
        return [name, values];
      })) as Record<FrameColumn, Float64Array>;
    }
    return numbers;
  }

  private text(text: string): number {
    let number = this.texts.get(text);
    if (number === undefined) this.texts.set(text, (number = this.model.manifest.texts.push(text) - 1));
    return number;
  }

  private site(site: Site): number {
    const key = keyOfSite(site);
    let number = this.sites.get(key);
    if (number === undefined) {
      this.sites.set(key, (number = this.model.sites.length));
      this.model.sites.push({ ...site, id: number });
    }
    return number;
  }
}

function keyOf(row: number[]): string {
  return row.join(" ");
}

function keyOfSite(site: Site): string {
  return JSON.stringify([site.label, site.file, site.line, site.func]);
}
