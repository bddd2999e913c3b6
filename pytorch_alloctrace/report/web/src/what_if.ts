// Simulations of the run's requests under other settings of torch's allocator.

import { themed } from "./colors";
import { h, replace, type Child } from "./dom";
import type { NotTried, Outcome, WhatIf } from "./manifest";
import type { Model } from "./model";
import type { Store } from "./store";
import { counted, exact, number, size } from "./units";

export function whatIf(model: Model, store: Store): HTMLElement {
  const body = h("div", {});
  store.follow(["device"], (state) => {
    const prediction = model.manifest.what_if[model.devices[state.device].name];
    replace(body, ...(isTried(prediction) ? outcomes(model, prediction) : [h("p", { class: "empty" }, prediction?.reason ?? "No setting was tried.")]));
  });
  return body;
}

function isTried(prediction: WhatIf | NotTried | undefined): prediction is WhatIf {
  return prediction !== undefined && "outcomes" in prediction;
}

const HEADS: [title: string, about: string][] = [
  ["Setting", "PYTORCH_ALLOC_CONF; as recorded, then the best first"], ["", ""],
  ["Peak reserved", "From the best to the worst order of the driver's addresses"],
  ["Device memory", "Reserved memory and the memory outside torch"],
  ["Retries", "Number of times that torch returns its cache and waits for the device"],
  ["Smallest GPU", "Of the common GPUs: the run fits on this one and on all larger ones"],
];

function outcomes(model: Model, prediction: WhatIf): Child[] {
  const maxBytes = Math.max(1, ...prediction.outcomes.map((outcome) => outcome.peak_reserved_bytes[1]));
  const leftOut = prediction.left_out.length ? [h("p", { class: "hint" }, `Not tried, since the trace is long: ${prediction.left_out.join(", ")}. The command what-if tries them.`)] : [];
  return [
    h("p", { class: "about" }, [prediction.check, ...prediction.conditions].join(" ")),
    h("div", { class: "table-box" }, h("table", { class: "what-if" },
      h("thead", {}, h("tr", {}, ...HEADS.map(([title, about], i) => h("th", { class: i === 0 || i === 5 ? "words" : i === 1 ? "drawn" : "", title: about }, title)))),
      h("tbody", {}, ...prediction.outcomes.map((outcome, i) => row(model, prediction, outcome, maxBytes, i === 0))))),
    ...leftOut,
    h("p", { class: "hint" }, prediction.notes.join(" ")),
  ];
}

function row(model: Model, prediction: WhatIf, outcome: Outcome, maxBytes: number, isRecorded: boolean): HTMLElement {
  const [best, worst] = outcome.peak_reserved_bytes;
  const bytes = best === worst ? exact(worst) : `${number(best)} to ${exact(worst)}`;
  const retries = outcome.retries[0] === outcome.retries[1] ? number(outcome.retries[1]) : `${number(outcome.retries[0])} to ${number(outcome.retries[1])}`;
  return h("tr", { class: isRecorded ? "recorded" : "" },
    h("td", { class: "words", "data-value": outcome.setting }, isRecorded ? outcome.setting : h("code", {}, outcome.setting), ...remarks(model, outcome)),
    h("td", { class: "drawn" }, bar(best, worst, maxBytes)),
    h("td", { title: bytes, "data-title": HEADS[2][0], "data-value": best, "data-most": worst }, range(best, worst)),
    h("td", { title: exact(outcome.device_used_bytes), "data-title": HEADS[3][0], "data-value": outcome.device_used_bytes }, size(outcome.device_used_bytes)),
    h("td", { "data-title": HEADS[4][0], "data-value": outcome.retries[1] }, retries),
    h("td", { class: "words", "data-title": HEADS[5][0], "data-value": outcome.smallest?.memory ?? "", title: outcome.smallest?.about }, !prediction.gpus_tried ? "not tried" : outcome.smallest ? outcome.smallest.name : "none of them"));
}

/** Formats a range of sizes, or one size if both are formatted alike. */
function range(best: number, worst: number): string {
  return size(best) === size(worst) ? size(worst) : `${size(best)} to ${size(worst)}`;
}

/** Draws a range as a bar: dark up to the best case, then light up to the worst. */
function bar(best: number, worst: number, maxBytes: number): HTMLElement {
  const part = (bytes: number, color: string) => {
    const element = h("span", { class: "bar-fill" });
    element.style.width = `${(100 * bytes) / maxBytes}%`;
    element.style.background = themed(color);
    return element;
  };
  return h("span", { class: "bar two-parts", "aria-hidden": "true" }, part(best, "allocated"), part(worst - best, "active"));
}

function remarks(model: Model, outcome: Outcome): Child[] {
  const lines: Child[] = [];
  if (outcome.failure) {
    const failingOrders = outcome.failing_orders < outcome.orders ? ` in ${outcome.failing_orders} of ${outcome.orders} orders of addresses` : "";
    lines.push(h("div", { class: "remark grew" }, `Ends${failingOrders} when ${size(outcome.failure.requested)} fails at ${model.site(outcome.failure.site).label}, with ${size(outcome.failure.reserved)} reserved`));
  }
  if (outcome.served) lines.push(h("div", { class: "remark shrank" }, `${counted(outcome.served, "request")} that failed in the recording would have succeeded`));
  if (outcome.failed_again) lines.push(h("div", { class: "remark hint" }, `${counted(outcome.failed_again, "request")} would have failed again`));
  return lines;
}
