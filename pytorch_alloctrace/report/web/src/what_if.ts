// What the same requests would have come to under other settings of torch's allocator.

import { themed } from "./colors";
import { h, replace, type Child } from "./dom";
import type { NotTried, Outcome, WhatIf } from "./manifest";
import type { Model } from "./model";
import type { Store } from "./store";
import { counted, exact, number, size } from "./units";

export function whatIf(model: Model, store: Store): HTMLElement {
  const body = h("div", {});
  store.follow(["device"], (state) => {
    const found = model.manifest.what_if[model.devices[state.device].name];
    replace(body, ...(tried(found) ? outcomes(model, found) : [h("p", { class: "empty" }, found?.refused ?? "No setting was tried.")]));
  });
  return body;
}

function tried(found: WhatIf | NotTried | undefined): found is WhatIf {
  return found !== undefined && "outcomes" in found;
}

function outcomes(model: Model, found: WhatIf): Child[] {
  const most = Math.max(1, ...found.outcomes.map((one) => one.peak_reserved_bytes[1]));
  const heads: [title: string, about: string][] = [
    ["Setting", "Of PYTORCH_ALLOC_CONF; as recorded first, then the best first"], ["", ""],
    ["Reserved at most", "From the best to the worst order of the addresses that the driver may give"],
    ["Of the device", "The same with what lies outside torch"],
    ["Retries", "Times that torch gives back all that it caches and waits for the device"],
    ["Smallest card", "Of the common ones: from this one on, the run fits on all"],
  ];
  const left = found.left_out.length ? [h("p", { class: "hint" }, `Not tried, since the trace is long: ${found.left_out.join(", ")}. The command what-if does.`)] : [];
  return [
    h("p", { class: "about" }, [found.check, ...found.conditions].join(" ")),
    h("div", { class: "table-box" }, h("table", { class: "what-if" },
      h("thead", {}, h("tr", {}, ...heads.map(([title, about], i) => h("th", { class: i === 0 || i === 5 ? "words" : i === 1 ? "drawn" : "", title: about }, title)))),
      h("tbody", {}, ...found.outcomes.map((one, i) => row(model, found, one, most, i === 0))))),
    ...left,
    h("p", { class: "hint" }, found.notes.join(" ")),
  ];
}

function row(model: Model, found: WhatIf, one: Outcome, most: number, isRecorded: boolean): HTMLElement {
  const [least, worst] = one.peak_reserved_bytes;
  const bytes = least === worst ? exact(worst) : `${number(least)} to ${exact(worst)}`;
  const retries = one.retries[0] === one.retries[1] ? number(one.retries[1]) : `${number(one.retries[0])} to ${number(one.retries[1])}`;
  return h("tr", { class: isRecorded ? "recorded" : "" },
    h("td", { class: "words", "data-value": one.setting }, isRecorded ? one.setting : h("code", {}, one.setting), ...remarks(model, one)),
    h("td", { class: "drawn" }, bar(least, worst, most)),
    h("td", { title: bytes, "data-value": least, "data-most": worst }, range(least, worst)),
    h("td", { title: exact(one.device_used_bytes), "data-value": one.device_used_bytes }, size(one.device_used_bytes)),
    h("td", { "data-value": one.retries[1] }, retries),
    h("td", { class: "words", "data-value": one.smallest?.memory ?? "", title: one.smallest?.about }, !found.gpus_tried ? "not tried" : one.smallest ? one.smallest.name : "none of them"));
}

/** A range of sizes; one where both look the same. */
function range(least: number, most: number): string {
  return size(least) === size(most) ? size(most) : `${size(least)} to ${size(most)}`;
}

/** As long as the least; what more it may be is lighter. */
function bar(least: number, worst: number, most: number): HTMLElement {
  const part = (bytes: number, color: string) => {
    const made = h("span", { class: "bar-fill" });
    made.style.width = `${(100 * bytes) / most}%`;
    made.style.background = themed(color);
    return made;
  };
  return h("span", { class: "bar two-parts", "aria-hidden": "true" }, part(least, "allocated"), part(worst - least, "active"));
}

/** What became of requests: those that would be refused, and those that the recorded run was refused. */
function remarks(model: Model, one: Outcome): Child[] {
  const said: Child[] = [];
  if (one.refused) {
    const where = one.refused_orders < one.orders ? ` in ${one.refused_orders} of ${one.orders} orders of addresses` : "";
    said.push(h("div", { class: "remark grew" }, `Ends${where} when ${size(one.refused.requested)} is refused at ${model.site(one.refused.site).label}, with ${size(one.refused.reserved)} reserved`));
  }
  if (one.served) said.push(h("div", { class: "remark shrank" }, `${counted(one.served, "request")} that the recorded run was refused would have been served`));
  if (one.refused_again) said.push(h("div", { class: "remark hint" }, `${counted(one.refused_again, "request")} would have been refused again`));
  return said;
}
