// What is live, by call: from the outermost call down, as analysis/usage/tree.py has it.

import type { Holding, Model } from "./model";

export interface Call {
  /** One frame that it stands for; -1: stacks that the page does not name. */
  frame: number;
  site: number;
  bytes: number;
  /** At the moment that is compared with. */
  before: number;
  own: number;
  blocks: number;
  calls: Call[];
  depth: number;
  parent: Call | null;
}

const DEEPEST = 200;

export function callTree(model: Model, now: Holding[], before: Holding[], allFrames: boolean): Call {
  const root: Call = { frame: -2, site: -2, bytes: 0, before: 0, own: 0, blocks: 0, calls: [], depth: 0, parent: null };
  const callees = new Map<Call, Map<string, Call>>();
  const ofFrame = new Map<number, Call>();

  const callee = (caller: Call, frame: number, key: string): Call => {
    let known = callees.get(caller);
    if (!known) callees.set(caller, (known = new Map()));
    let made = known.get(key);
    if (!made) {
      made = { frame, site: model.siteOfFrame(frame), bytes: 0, before: 0, own: 0, blocks: 0, calls: [], depth: caller.depth + 1, parent: caller };
      known.set(key, made);
      caller.calls.push(made);
    }
    return made;
  };

  const { parent, function: name, file, line, user } = model.frames;
  const keyOf = (frame: number) => `${name[frame]} ${file[frame]} ${line[frame]}`;
  const callOf = (frame: number): Call => {
    const pending: number[] = [];
    let at = frame;
    while (at >= 0 && !ofFrame.has(at)) {
      pending.push(at);
      at = parent[at];
    }
    let call = at >= 0 ? ofFrame.get(at)! : root;
    for (const one of pending.reverse()) {
      if (allFrames || user[one]) {
        // A function that calls itself from one line, over and over, is one call there.
        const repeats = call !== root && keyOf(call.frame) === keyOf(one);
        if (!repeats && call.depth < DEEPEST) call = callee(call, one, keyOf(one));
      }
      ofFrame.set(one, call);
    }
    return call;
  };

  const add = (holding: Holding, isBefore: boolean) => {
    let call = holding.frame < 0 ? callee(root, -1, "other") : callOf(holding.frame);
    // No frame is shown: its site stands in.
    if (call === root) call = callee(root, holding.frame, `site ${model.siteOfFrame(holding.frame)}`);
    if (!isBefore) call.own += holding.bytes;
    for (let at: Call | null = call; at; at = at.parent) {
      if (isBefore) at.before += holding.bytes;
      else {
        at.bytes += holding.bytes;
        at.blocks += holding.blocks;
      }
    }
  };
  for (const holding of now) add(holding, false);
  for (const holding of before) add(holding, true);
  const order = (call: Call) => {
    call.calls.sort((a, b) => b.bytes - a.bytes || b.before - a.before);
    call.calls.forEach(order);
  };
  order(root);
  return root;
}
