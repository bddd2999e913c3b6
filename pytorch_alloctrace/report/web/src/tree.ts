// Call tree of the live memory, from the outermost call down, as in analysis/usage/tree.py.

import type { Holding, Model } from "./model";

export interface Call {
  /** One of the frames merged into the call; -1 for stacks that the page does not name, -2 for the root. */
  frame: number;
  site: number;
  bytes: number;
  /** Bytes at the other snapshot. */
  before: number;
  own: number;
  blocks: number;
  calls: Call[];
  depth: number;
  parent: Call | null;
}

const MAX_DEPTH = 200;

export function callTree(model: Model, now: Holding[], before: Holding[], allFrames: boolean): Call {
  const root: Call = { frame: -2, site: -2, bytes: 0, before: 0, own: 0, blocks: 0, calls: [], depth: 0, parent: null };
  const callees = new Map<Call, Map<string, Call>>();
  const ofFrame = new Map<number, Call>();

  const callee = (caller: Call, frame: number, key: string): Call => {
    let byKey = callees.get(caller);
    if (!byKey) callees.set(caller, (byKey = new Map()));
    let call = byKey.get(key);
    if (!call) {
      call = { frame, site: model.siteOfFrame(frame), bytes: 0, before: 0, own: 0, blocks: 0, calls: [], depth: caller.depth + 1, parent: caller };
      byKey.set(key, call);
      caller.calls.push(call);
    }
    return call;
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
    for (const next of pending.reverse()) {
      if (allFrames || user[next]) {
        // Recursion from one line is merged into one call.
        const repeats = call !== root && keyOf(call.frame) === keyOf(next);
        if (!repeats && call.depth < MAX_DEPTH) call = callee(call, next, keyOf(next));
      }
      ofFrame.set(next, call);
    }
    return call;
  };

  const add = (holding: Holding, isBefore: boolean) => {
    let call = holding.frame < 0 ? callee(root, -1, "other") : callOf(holding.frame);
    // None of the stack's frames is shown: show the site of the stack.
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
