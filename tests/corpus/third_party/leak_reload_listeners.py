"""A recommendation server; every visitor's context listens for reloads of the model to refresh its vector.

Contexts are dropped when the visitor leaves, but nobody takes their listeners off the model store.
"""

import random
import sys

import torch


class ModelStore:
    def __init__(self, device):
        self.device = device
        self.items = torch.randn(500, 128, device=device)
        self.listeners = []

    def on_reload(self, listener):
        self.listeners.append(listener)  # LEAK

    def reload(self):
        self.items = torch.randn(500, 128, device=self.device)
        for listener in self.listeners:
            listener(self.items)


class VisitorContext:
    def __init__(self, store, history):
        self.history = history
        self.vector = None
        self.refresh(store.items)
        store.on_reload(self.refresh)  # LEAK

    def refresh(self, items):
        self.vector = items[self.history].mean(dim=0)  # LEAK

    def recommend(self, store):
        return (store.items @ self.vector).topk(10).indices


def main():
    torch.manual_seed(40)
    torch.set_num_threads(1)
    rng = random.Random(40)
    store = ModelStore(sys.argv[1])
    present = {}
    for visit in range(600):
        present[visit] = VisitorContext(store, [rng.randrange(500) for _ in range(20)])
        for context in list(present.values())[-3:]:
            context.recommend(store)
        if len(present) > 12:
            del present[rng.choice(list(present))]
        if visit % 200 == 199:
            store.reload()
    print("present:", len(present), "listeners:", len(store.listeners))


if __name__ == "__main__":
    main()
