"""A language-model engine with paged keys and values: prefix pages stay for reuse within a budget of pages."""

import random
import sys

import torch

PAGE = 16
WIDTH = 64


class Pages:
    def __init__(self, device, budget):
        self.device = device
        self.budget = budget
        self.pages = {}
        self.references = {}
        self.clock = 0
        self.last_use = {}

    def acquire(self, prefix):
        self.clock += 1
        if prefix not in self.pages:
            if len(self.pages) >= self.budget:
                self.evict()
            self.pages[prefix] = torch.randn(2, PAGE, WIDTH, device=self.device)
            self.references[prefix] = 0
        self.references[prefix] += 1
        self.last_use[prefix] = self.clock
        return self.pages[prefix]

    def release(self, prefix):
        self.references[prefix] -= 1

    def evict(self):
        idle = [p for p, count in self.references.items() if count == 0]
        oldest = min(idle, key=self.last_use.__getitem__)
        for table in (self.pages, self.references, self.last_use):
            del table[oldest]


def run_request(pages, tokens, device, cancelled):
    taken = []
    try:
        for end in range(PAGE, len(tokens) + 1, PAGE):
            prefix = tuple(tokens[:end])
            pages.acquire(prefix)
            taken.append(prefix)
        if cancelled:
            return
        held = torch.cat([pages.pages[p] for p in taken], dim=1)
        query = torch.randn(1, WIDTH, device=device)
        for _ in range(4):
            query = torch.softmax(query @ held[0].T, dim=-1) @ held[1]
    finally:
        for prefix in taken:
            pages.release(prefix)


def main():
    device = sys.argv[1]
    torch.manual_seed(5)
    torch.set_num_threads(1)
    rng = random.Random(5)
    pages = Pages(device, budget=200)
    starts = [[rng.randrange(5000) for _ in range(32)] for _ in range(5)]
    for _ in range(300):
        tokens = rng.choice(starts) + [rng.randrange(5000) for _ in range(rng.randint(0, 64))]
        run_request(pages, tokens, device, cancelled=rng.random() < 0.1)
    print(len(pages.pages), "pages")


if __name__ == "__main__":
    main()
