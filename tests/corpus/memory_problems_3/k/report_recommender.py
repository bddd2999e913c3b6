"""Hyper-parameter sweep of a next-item recommender for the marketplace feed."""
import itertools
import sys

import torch

from seqrec.data import InteractionLog
from seqrec.model import SequenceRecommender

NUM_ITEMS = 180_000
WIDTHS = (64, 96, 128)
DROPOUTS = (0.1, 0.3)
RATES = (1e-3, 3e-4)


def curriculum(steps):
    """History lengths, short to long."""
    return [(50, steps), (100, steps), (200, steps)]


@torch.no_grad()
def ranking_score(model, log, device, generator, candidates=512):
    model.eval()
    history, target, _ = next(log.batches(100, 64, 1, device, generator))
    state = model(history)[:, -1]
    pool = torch.randint(1, log.num_items, (candidates,), generator=generator).to(device)
    positive = (state * model.items(target[:, -1])).sum(-1, keepdim=True)
    rank = (state @ model.items(pool).T > positive).sum(-1).float()
    return (1.0 / torch.log2(rank + 2)).mean().item()


def run_trial(config, log, device):
    generator = torch.Generator().manual_seed(11)
    with device:
        model = SequenceRecommender(
            log.num_items, config["width"], depth=2, heads=4, dropout=config["dropout"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    model.train()
    for length, steps in curriculum(2):
        for history, positive, negative in log.batches(length, 64, steps, device, generator):
            loss = model.pair_loss(history, positive, negative)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    return ranking_score(model, log, device, generator)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(3)
    log = InteractionLog(NUM_ITEMS, num_users=4000)
    leaderboard = []
    for number, (width, dropout, lr) in enumerate(itertools.product(WIDTHS, DROPOUTS, RATES)):
        config = {"width": width, "dropout": dropout, "lr": lr}
        score = run_trial(config, log, device)
        leaderboard.append((score, config))
        print(f"trial {number:2d} {config} ndcg={score:.4f}", flush=True)
    leaderboard.sort(key=lambda entry: -entry[0])
    print("best configuration:", leaderboard[0][1])


if __name__ == "__main__":
    main()
