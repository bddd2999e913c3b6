// Elements. Texts become text nodes, never HTML: what a trace holds cannot become code.

export type Child = Node | string | null | undefined | false;
type Properties = Record<string, string | number | boolean | ((event: any) => void) | undefined>;

/** An element; properties that begin with "on" are listeners, `class` and the others attributes. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, properties: Properties = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  fill(made, properties, children);
  return made;
}

/** The same for SVG. */
export function svg(tag: string, properties: Properties = {}, ...children: Child[]): SVGElement {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(made, properties, children);
  return made;
}

function fill(made: Element, properties: Properties, children: Child[]): void {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  append(made, ...children);
}

export function append(parent: Element, ...children: Child[]): void {
  for (const child of children) if (child !== null && child !== undefined && child !== false) parent.append(child);
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, ...children);
}

/** A colour sample. */
export function swatch(color: string): HTMLElement {
  const made = h("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = color;
  return made;
}

/** A canvas as wide as its parent, sharp on any screen; returns what to draw on and its size in CSS pixels. */
export function fit(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
