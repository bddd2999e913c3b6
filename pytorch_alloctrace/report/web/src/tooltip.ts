// Tooltip that follows the pointer.

import { h, replace, type Child } from "./dom";

const box = h("div", { class: "tooltip", role: "tooltip", hidden: true });

export function showTooltip(event: { clientX: number; clientY: number }, ...children: Child[]): void {
  if (!box.isConnected) document.body.append(box);
  replace(box, ...children);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + 14 + width > window.innerWidth ? event.clientX - width - 14 : event.clientX + 14;
  const top = event.clientY + 14 + height > window.innerHeight ? event.clientY - height - 14 : event.clientY + 14;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, top)}px`;
}

export function hideTooltip(): void {
  box.hidden = true;
}

export function line(name: Child, value: string): HTMLElement {
  return h("div", { class: "tooltip-line" }, h("span", {}, name), h("b", {}, value));
}
