"""Late interaction passage search: scores a query against the candidate passages."""
import logging
import random
import time

import torch

from embedserve.encoder import Encoder, token_embeddings

DEVICE = torch.device("cuda")
REQUESTS = 180
CANDIDATES = 6

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
logger = logging.getLogger("search")

TOPICS = "billing refund invoice login password region latency export import webhook quota seat".split()


class PassageStore:
    """Index over a fixed set of help center articles."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.passages = [
            " ".join(rng.choice(TOPICS) for _ in range(rng.randint(60, 160))) for _ in range(n)]
        self.rng = rng

    def candidates(self, query, k):
        return self.rng.sample(self.passages, k)


class QueryStream:
    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.ticket = 48_200

    def __iter__(self):
        while True:
            self.ticket += self.rng.randint(1, 9)
            words = [self.rng.choice(TOPICS) for _ in range(self.rng.randint(40, 90))]
            yield f"ticket {self.ticket} " + " ".join(words)


class SearchHandler:
    def __init__(self):
        self.encoder = Encoder().to(DEVICE).eval()
        self.store = PassageStore(24, seed=3)
        self.latencies = []

    def maxsim(self, query, passage):
        return (query @ passage.T).max(dim=1).values.sum()

    def handle(self, query):
        begin = time.perf_counter()
        q = token_embeddings(self.encoder, query, DEVICE)
        hits = []
        for passage in self.store.candidates(query, CANDIDATES):
            p = token_embeddings(self.encoder, passage, DEVICE)
            hits.append((self.maxsim(q, p).item(), passage[:40]))
        hits.sort(reverse=True)
        self.latencies.append(time.perf_counter() - begin)
        return hits[:3]

    def p95(self):
        ordered = sorted(self.latencies)
        return 1000 * ordered[int(0.95 * (len(ordered) - 1))]


def main():
    torch.manual_seed(0)
    handler = SearchHandler()
    for number, query in zip(range(1, REQUESTS + 1), QueryStream(seed=9)):
        hits = handler.handle(query)
        if number % 60 == 0:
            logger.info("%d requests, p95 %.1f ms, best %s", number, handler.p95(), hits[0][1])


if __name__ == "__main__":
    main()
