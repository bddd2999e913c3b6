// Creation of elements. Texts become text nodes, never HTML, so that no text of a trace can run as code.

export type Child = Node | string | null | undefined | false;
type Properties = Record<string, string | number | boolean | ((event: any) => void) | undefined>;

/** Creates an element. Functions are listeners, named "onclick" etc.; other properties are attributes. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K, properties: Properties = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  fill(element, properties, children);
  return element;
}

export function svg(tag: string, properties: Properties = {}, ...children: Child[]): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  fill(element, properties, children);
  return element;
}

function fill(element: Element, properties: Properties, children: Child[]): void {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, ...children);
}

export function append(parent: Element, ...children: Child[]): void {
  for (const child of children) if (child !== null && child !== undefined && child !== false) parent.append(child);
}

export function replace(parent: Element, ...children: Child[]): void {
  parent.replaceChildren();
  append(parent, ...children);
}

export function swatch(color: string): HTMLElement {
  const element = h("span", { class: "swatch", "aria-hidden": "true" });
  element.style.background = color;
  return element;
}

/** Sets the size of a canvas in CSS pixels, sharp on any screen, and returns its context. */
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
