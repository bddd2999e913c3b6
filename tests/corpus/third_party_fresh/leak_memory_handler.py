"""Scores transactions; the log of details is buffered in memory, 200 records at a time, before it goes to its target.

The target is set from the configuration, which names none here. Without one the handler never empties its buffer, whatever
its capacity, and the records hold their arguments.
"""

import logging
import logging.handlers
import random
import sys

import torch
from torch import nn

log = logging.getLogger("fraud")


def configure_logging(path=None):
    log.setLevel(logging.DEBUG)
    log.propagate = False
    buffered = logging.handlers.MemoryHandler(capacity=200, flushLevel=logging.ERROR)
    if path is not None:
        buffered.setTarget(logging.FileHandler(path))
    log.addHandler(buffered)


class FraudScorer(nn.Module):
    def __init__(self, features=40, width=96):
        super().__init__()
        self.merchant = nn.Embedding(400, 24)
        self.gru = nn.GRU(features + 24, width, batch_first=True)
        self.score = nn.Linear(width, 1)

    @torch.no_grad()
    def forward(self, merchants, details):
        states, _ = self.gru(torch.cat([self.merchant(merchants), details], dim=2))  # LEAK
        scores = self.score(states[:, -1]).squeeze(1).sigmoid()
        log.debug("scored %d accounts, states %s", len(scores), states)  # LEAK
        return scores


def handle(scorer, merchants, details, limit):
    scores = scorer(merchants, details)  # LEAK
    flagged = (scores > limit).nonzero().flatten().tolist()
    if len(flagged) > len(scores) // 2:
        log.warning("%d of %d accounts flagged", len(flagged), len(scores))
    return flagged


def main():
    device = sys.argv[1]
    torch.manual_seed(14)
    torch.set_num_threads(1)
    rng = random.Random(14)
    configure_logging()
    scorer = FraudScorer().to(device).eval()
    flagged = 0
    for _ in range(1200):
        accounts, length = rng.randint(2, 12), rng.randint(8, 32)
        merchants = torch.randint(0, 400, (accounts, length), device=device)
        details = torch.randn(accounts, length, 40, device=device)
        flagged += len(handle(scorer, merchants, details, limit=0.52))  # LEAK
    print(f"{flagged} accounts flagged")


if __name__ == "__main__":
    main()
