"""Translation service for many language pairs that share one GPU."""
import argparse
import logging
import random

import torch

from model_hub.registry import ModelRegistry

PAIRS = ["de-en", "fr-en", "en-de", "es-en", "en-fr", "it-en", "pl-en", "en-es"]


def requests(n, seed):
    rng = random.Random(seed)
    popularity = [1 / (i + 1) for i in range(len(PAIRS))]
    pair = PAIRS[0]
    for i in range(n):
        if rng.random() < 0.15 or i == 0:
            pair = rng.choices(PAIRS, popularity)[0]
        yield pair, torch.randint(2, 16000, (rng.randint(1, 8), rng.randint(8, 80)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=160)
    parser.add_argument("--resident", type=int, default=4)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING)
    device = torch.device("cuda")
    registry = ModelRegistry(args.resident, device)
    sentences = 0
    for number, (pair, ids) in enumerate(requests(args.requests, seed=2)):
        model = registry.get(pair)
        sentences += len(model.translate(ids.to(device), steps=8))
        if number % 40 == 39:
            print(f"{number + 1} requests, {sentences} sentences, resident: {', '.join(registry.resident)}")


if __name__ == "__main__":
    main()
