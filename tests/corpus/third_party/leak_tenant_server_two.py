"""A scoring server for several tenants with a cache of features and an audit trail.

Two leaks: the cache has the time of the request in its key, and the audit trail keeps the scores of all requests.
"""

import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class FeatureCache:
    def __init__(self, encoder):
        self.encoder = encoder
        self.entries = {}

    def get(self, tenant, clock, document):
        key = (tenant, round(clock, 3))
        if key not in self.entries:
            self.entries[key] = torch.tanh(self.encoder(document))  # LEAK 1
        return self.entries[key]


class AuditTrail:
    def __init__(self):
        self.records = []

    def note(self, tenant, scores):
        self.records.append({"tenant": tenant, "scores": scores.sort(descending=True).values})  # LEAK 2


class ScoringServer:
    def __init__(self, device):
        self.device = device
        self.cache = FeatureCache(nn.Linear(96, 512).to(device))
        self.candidates = torch.randn(700, 512, device=device)
        self.audit = AuditTrail()

    @torch.no_grad()
    def handle(self, tenant, clock, document):
        features = self.cache.get(tenant, clock, document.to(self.device))  # LEAK 1
        scores = self.candidates @ features
        self.audit.note(tenant, scores)  # LEAK 2
        return scores.topk(5)


def main():
    torch.manual_seed(14)
    torch.set_num_threads(1)
    rng = random.Random(14)
    server = ScoringServer(sys.argv[1])
    documents = [torch.randn(96) for _ in range(40)]
    clock = 0.0
    for _ in range(800):
        clock += rng.expovariate(5.0)
        server.handle(rng.choice("abc"), clock, rng.choice(documents))
        alloctrace.step()
    print(f"{len(server.audit.records)} requests until {clock:.1f} s")


if __name__ == "__main__":
    main()
