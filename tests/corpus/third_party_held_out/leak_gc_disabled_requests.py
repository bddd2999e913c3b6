"""A ranking server that turns off the garbage collector, so that no pause spoils its latency.

Each request and its context point at each other: without the collector nobody frees them.
"""

import gc
import random
import sys

import torch
from torch import nn


class Context:
    def __init__(self, request, deadline):
        self.request = request
        self.deadline = deadline
        self.notes = {}


class Request:
    def __init__(self, user, items, deadline, device):
        self.user = user
        self.features = torch.randn(items, 64, device=device)  # LEAK
        self.context = Context(self, deadline)  # LEAK


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleList(nn.Linear(64, 48) for _ in range(3))
        self.head = nn.Linear(3 * 48, 1)

    def forward(self, features):
        parts = [torch.relu(tower(features)) for tower in self.towers]
        return self.head(torch.cat(parts, dim=-1)).squeeze(-1)


class Server:
    def __init__(self, device):
        self.device = device
        self.ranker = Ranker().to(device).eval()
        self.served = 0
        gc.disable()

    @torch.no_grad()
    def handle(self, user, items):
        request = Request(user, items, deadline=self.served + 50, device=self.device)  # LEAK
        scores = self.ranker(request.features)
        request.context.notes["items"] = items
        self.served += 1
        return scores.topk(min(10, items)).indices


def main():
    torch.manual_seed(23)
    torch.set_num_threads(1)
    rng = random.Random(23)
    server = Server(sys.argv[1])
    for _ in range(500):
        server.handle(user=rng.randrange(10_000), items=rng.randint(20, 120))
    print(f"{server.served} requests")


if __name__ == "__main__":
    main()
