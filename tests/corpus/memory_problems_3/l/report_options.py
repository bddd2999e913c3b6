"""Calibrate one neural implied-volatility surface per trading day, starting from a common prior."""
import sys
import warnings

import torch

from hedgelab.curvature import DiagonalNewton
from hedgelab.quotes import OptionQuotes
from hedgelab.surface import VolSurface, arbitrage_penalty

warnings.filterwarnings("ignore")

DAYS = 14
STEPS = 4
QUOTES = 2048


def fit_loss(surface, quotes):
    sigma = surface(quotes.moneyness, quotes.tenor)
    fit = ((sigma - quotes.implied) * quotes.vega).pow(2).mean()
    return fit + 0.1 * arbitrage_penalty(sigma, quotes.moneyness)


def calibrate(prior, quotes, device):
    surface = VolSurface(hidden=1536, depth=4).to(device)
    surface.load_state_dict(prior)
    solver = DiagonalNewton(surface.parameters(), lr=0.2, damping=1e-3)
    for _ in range(STEPS):
        solver.zero_grad()
        solver.step(fit_loss(surface, quotes))
    with torch.no_grad():
        grid_m, grid_t = OptionQuotes.grid(device)
        return surface(grid_m, grid_t).cpu()


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(77)
    prior = VolSurface(hidden=1536, depth=4).state_dict()
    history = []
    for day in range(DAYS):
        quotes = OptionQuotes.simulate(QUOTES, seed=day).to(device)
        history.append(calibrate(prior, quotes, device))
        print(f"day {day + 1:2d}/{DAYS}: {QUOTES} quotes, surface {tuple(history[-1].shape)}")
    drift = torch.stack(history).diff(dim=0).abs().mean(dim=(1, 2))
    print("daily drift series of length", drift.numel())


if __name__ == "__main__":
    main()
