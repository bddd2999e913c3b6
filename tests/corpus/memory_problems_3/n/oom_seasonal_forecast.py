import sys

import torch

from seasonal.metrics import Scorecard, area_weights, fair_crps
from seasonal.model import StochasticStepper

VARIABLES = ["z500", "t850", "u10", "sst"]
NLAT, NLON = 121, 240


class Reanalysis:
    """Weekly means on a 1.5 degree grid."""

    def __init__(self, weeks, device, seed):
        self.weeks = weeks
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, batch):
        base = torch.randn(batch, len(VARIABLES), 16, 31, generator=self.generator).to(self.device)
        field = torch.nn.functional.interpolate(base, size=(NLAT, NLON), mode="bilinear")
        return field, field + 0.1 * torch.roll(field, 4, dims=-1)


def train_epoch(model, optimizer, data, weights, steps, batch, members=4):
    total = torch.zeros((), device=weights.device)
    for _ in range(steps):
        state, target = data.sample(batch)
        forecasts = model(state.repeat_interleave(members, dim=0))
        forecasts = forecasts.view(batch, members, *state.shape[1:]).transpose(0, 1)
        loss = fair_crps(forecasts, target, weights).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        total += loss.detach()
    return total.item() / steps


def evaluate(model, data, weights, starts, members, leads, batch=4):
    model.eval()
    card = Scorecard(VARIABLES)
    for _ in range(starts // batch):
        state, truth = data.sample(batch)
        ensemble = model.rollout(state, members=members, leads=leads)
        card.update(ensemble, truth, weights)
    model.train()
    return card.report()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(3)
    weights = area_weights(NLAT, device)
    train_data = Reanalysis(weeks=2000, device=device, seed=1)
    valid_data = Reanalysis(weeks=200, device=device, seed=2)
    hindcast = Reanalysis(weeks=400, device=device, seed=4)

    model = StochasticStepper(len(VARIABLES)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for epoch in range(3):
        loss = train_epoch(model, optimizer, train_data, weights, steps=6, batch=4)
        scores = evaluate(model, valid_data, weights, starts=8, members=8, leads=2)
        print(f"epoch {epoch}: loss {loss:.4f}  t850 {scores['t850']}", flush=True)

    print("hindcast period, operational configuration", flush=True)
    for leads in (1, 2, 4):
        scores = evaluate(model, hindcast, weights, starts=16, members=50, leads=leads)
        for name, values in scores.items():
            print(f"  week {leads} {name:5s} rmse {values[0]} spread {values[1]} crps {values[2]}", flush=True)


if __name__ == "__main__":
    main()
