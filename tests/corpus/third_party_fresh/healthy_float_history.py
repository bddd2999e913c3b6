"""Trains a variational autoencoder with a detailed history of each step, all of it Python numbers, printed at the end."""

import collections
import statistics
import sys

import torch
from torch import nn


class Vae(nn.Module):
    def __init__(self, inputs=64, hidden=128, latent=10):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, inputs))

    def forward(self, x):
        mean, log_var = self.encoder(x).chunk(2, dim=1)
        z = mean + torch.randn_like(mean) * (0.5 * log_var).exp()
        return self.decoder(z), mean, log_var


class History:
    def __init__(self):
        self.rows = []
        self.by_unit = collections.defaultdict(list)

    def add(self, **values):
        self.rows.append({name: value.item() if torch.is_tensor(value) else value for name, value in values.items()})

    def add_units(self, divergences):
        for unit, value in enumerate(divergences.tolist()):
            self.by_unit[unit].append(value)

    def mean(self, name, last):
        return statistics.fmean(row[name] for row in self.rows[-last:])

    def active_units(self, last):
        return sum(statistics.fmean(values[-last:]) > 0.05 for values in self.by_unit.values())


def main():
    device = sys.argv[1]
    torch.manual_seed(38)
    torch.set_num_threads(1)
    model = Vae().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    history = History()
    basis = torch.randn(5, 64, device=device)
    for step in range(500):
        x = torch.randn(96, 5, device=device) @ basis / 2
        output, mean, log_var = model(x)
        fit = (output - x).square().sum(dim=1).mean()
        by_unit = -0.5 * (1 + log_var - mean.square() - log_var.exp()).mean(dim=0)
        loss = fit + min(1.0, step / 300) * by_unit.sum()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 50.0)
        optimizer.step()
        history.add(step=step, loss=loss, fit=fit, divergence=by_unit.sum(), norm=norm)
        history.add_units(by_unit.detach())
    print(f"loss {history.mean('loss', 50):.3f}, fit {history.mean('fit', 50):.3f}, {history.active_units(50)} units in use")


if __name__ == "__main__":
    main()
