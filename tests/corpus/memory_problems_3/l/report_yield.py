"""Leave-one-season-out validation of a crop-yield model on mixed categorical / weather features."""
import sys

import torch
import torch.nn.functional as F

from cropyield.fields import FieldTrials
from cropyield.network import YieldNet
from cropyield.training import clip_table_gradients, make_optimizer

SEASONS = list(range(2011, 2023))
ROUNDS = 6
BATCH = 2048


def fit(trials, held_out, device):
    model = YieldNet(trials.cardinalities, n_numeric=trials.n_numeric).to(device)
    optimizer = make_optimizer(model, lr=0.05)
    model.train()
    for codes, numeric, target in trials.batches(BATCH, ROUNDS, exclude=held_out):
        pred = model(codes.to(device), numeric.to(device))
        loss = F.huber_loss(pred, target.to(device), delta=0.5)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clip_table_gradients(model, limit=1.0)
        optimizer.step()
    return model


@torch.no_grad()
def season_error(model, trials, season, device):
    model.eval()
    errors = []
    for codes, numeric, target in trials.batches(BATCH, 2, only=season):
        pred = model(codes.to(device), numeric.to(device))
        errors.append((pred - target.to(device)).abs().mean().cpu())
    return torch.stack(errors).mean()


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(31)
    trials = FieldTrials(seed=31, seasons=SEASONS)
    scores = {}
    for season in SEASONS:
        model = fit(trials, season, device)
        scores[season] = float(season_error(model, trials, season, device))
        del model
        print(f"season {season}: held-out error computed ({len(scores)}/{len(SEASONS)})")
    print("validated on", len(scores), "seasons")


if __name__ == "__main__":
    main()
