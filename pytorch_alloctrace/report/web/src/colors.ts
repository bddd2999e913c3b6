// One colour for each line of code, in all views: those that hold most have colours of their own, which colour-blind
// people can tell apart (after Okabe and Ito); the others are grey.

import { OTHER_SITE, type Model } from "./model";

const OWN = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#882255"];
const GREYS = ["#7d8793", "#98a1ac", "#66707c", "#b0b8c1"];
export const OWN_COUNT = OWN.length;

export class Colors {
  private readonly bySite = new Map<number, string>();
  /** The sites that have colours of their own, those that hold most first. */
  readonly top: number[];

  constructor(model: Model) {
    const most = new Map<number, number>();
    for (const device of model.devices) {
      for (const [site, bytes] of device.bytesBySite()) {
        most.set(site, Math.max(most.get(site) ?? 0, bytes.reduce((a, b) => Math.max(a, b), 0)));
      }
    }
    const ordered = [...most.entries()].filter(([site]) => site !== OTHER_SITE).sort((a, b) => b[1] - a[1]).map(([site]) => site);
    this.top = ordered.slice(0, OWN.length);
    ordered.forEach((site, rank) => this.bySite.set(site, rank < OWN.length ? OWN[rank] : GREYS[rank % GREYS.length]));
  }

  of(site: number): string {
    return this.bySite.get(site) ?? GREYS[3];
  }
}

/** The value of a colour of the style sheet, which knows light and dark. */
export function themed(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** A colour with an opacity, 0 to 1. */
export function faded(color: string, opacity: number): string {
  const hex = /^#([0-9a-f]{6})$/i.exec(color);
  if (!hex) return color;
  return color + Math.round(opacity * 255).toString(16).padStart(2, "0");
}

/** From young to old: a scale that is also one of lightness. */
export function ageColor(share: number): string {
  const stops = [[253, 231, 137], [94, 201, 148], [33, 145, 140], [59, 82, 139], [68, 21, 84]];
  const at = Math.max(0, Math.min(1, share)) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  const mixed = stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * (at - low)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}

/** Whether dark text can be read on a colour. */
export function isLight(color: string): boolean {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return 0.299 * r + 0.587 * g + 0.114 * b > 150;
}
