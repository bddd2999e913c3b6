// Colours of lines of code, equal in all views. The lines that hold the most have distinct colours, which colour-blind
// people can tell apart (after Okabe and Ito). Other lines are grey.

import { OTHER_SITE, type Model } from "./model";

const DISTINCT = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];
const GREYS = ["#7d8793", "#98a1ac", "#66707c", "#b0b8c1"];
const ROLES: Record<string, string> = {
  parameter: "#0072b2", buffer: "#56b4e9", "optimizer state": "#882255", gradient: "#d55e00", activation: "#009e73",
  input: "#e69f00", temporary: "#cc79a7", "library workspace": "#999933", other: "#7d8793", unknown: "#b0b8c1",
};

export class Colors {
  private readonly bySite = new Map<number, string>();
  /** Sites with distinct colours, the largest first. */
  readonly top: number[];

  constructor(model: Model) {
    const maxBytes = new Map<number, number>();
    for (const device of model.devices) {
      for (const [site, bytes] of device.bytesBySite()) {
        maxBytes.set(site, Math.max(maxBytes.get(site) ?? 0, bytes.reduce((a, b) => Math.max(a, b), 0)));
      }
    }
    const ordered = [...maxBytes.entries()].filter(([site]) => site !== OTHER_SITE).sort((a, b) => b[1] - a[1]).map(([site]) => site);
    this.top = ordered.slice(0, DISTINCT.length);
    ordered.forEach((site, rank) => this.bySite.set(site, rank < DISTINCT.length ? DISTINCT[rank] : GREYS[rank % GREYS.length]));
  }

  of(site: number): string {
    return this.bySite.get(site) ?? GREYS[3];
  }
}

export function roleColor(role: string): string {
  return ROLES[role] ?? GREYS[3];
}

/** Returns a colour of the style sheet, in the current light or dark scheme. */
export function themed(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns a colour with an opacity from 0 to 1. */
export function faded(color: string, opacity: number): string {
  const hex = /^#([0-9a-f]{6})$/i.exec(color);
  if (!hex) return color;
  return color + Math.round(opacity * 255).toString(16).padStart(2, "0");
}

/** Returns the colour of an age from 0 (new, light) to 1 (old, dark). */
export function ageColor(share: number): string {
  const stops = [[253, 231, 137], [94, 201, 148], [33, 145, 140], [59, 82, 139], [68, 21, 84]];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const mixed = stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * (at - low)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Returns true if a colour needs dark text. */
export function isLight(color: string): boolean {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 150;
}
