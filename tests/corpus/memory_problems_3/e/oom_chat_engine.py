#!/usr/bin/env python
"""Chat engine: round-robin decoding of several conversations with a static cache."""
import argparse
import collections
import random

import torch

from engine.cache import StaticCache
from engine.model import Decoder


class Request:
    def __init__(self, number, prompt, new_tokens):
        self.number, self.prompt, self.remaining = number, prompt, new_tokens
        self.slot, self.last, self.output = None, None, []


class Engine:
    def __init__(self, args):
        with torch.device("cuda"):
            self.model = Decoder(args.vocab, args.dim, args.layers, args.heads, args.kv_heads, 4 * args.dim)
        self.model.to(torch.bfloat16).eval()
        self.cache = StaticCache(args.layers, args.slots, args.kv_heads, args.max_seq, args.dim // args.heads)
        self.waiting, self.running = collections.deque(), []

    def submit(self, request):
        self.waiting.append(request)

    @torch.inference_mode()
    def tick(self):
        while self.waiting and self.cache.free:
            request = self.waiting.popleft()
            request.slot = self.cache.acquire()
            request.last = self.model(request.prompt.cuda(), self.cache, request.slot).argmax(-1)
            self.running.append(request)
        finished = []
        for request in self.running:
            request.output.append(request.last)
            request.remaining -= 1
            if request.remaining == 0:
                finished.append(request)
            else:
                request.last = self.model(request.last, self.cache, request.slot).argmax(-1)
        for request in finished:
            self.running.remove(request)
            self.cache.release(request.slot)
            request.output = torch.cat(request.output).cpu()
        return finished


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--vocab", type=int, default=32768)
    p.add_argument("--dim", type=int, default=2048)
    p.add_argument("--layers", type=int, default=16)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--kv-heads", type=int, default=8)
    p.add_argument("--slots", type=int, default=12)
    p.add_argument("--max-seq", type=int, default=16384)
    p.add_argument("--requests", type=int, default=24)
    args = p.parse_args()
    engine = Engine(args)
    rng = random.Random(0)
    for i in range(args.requests):
        engine.submit(Request(i, torch.randint(0, args.vocab, (rng.randrange(64, 1500),)), rng.randrange(20, 50)))
    done, ticks = 0, 0
    while done < args.requests:
        done += len(engine.tick())
        ticks += 1
    print(f"{done} conversations in {ticks} ticks")


if __name__ == "__main__":
    main()
