"""Walk-forward backtest: a fresh network for every window of the price history."""
import gc
import sys
import time

import torch
import torch.nn as nn

from walkforward.market import load_prices, windows
from walkforward.trainer import Trainer

N_ASSETS = 300
LOOKBACK = 20
TRAIN_DAYS, TEST_DAYS = 756, 126
BATCH = 128
HIDDEN = 3072


def set_up(seed):
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    gc.disable()


def build_network(device):
    with device:
        return nn.Sequential(
            nn.Linear(N_ASSETS * LOOKBACK, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, HIDDEN), nn.GELU(), nn.LayerNorm(HIDDEN),
            nn.Linear(HIDDEN, N_ASSETS),
        )


def positions(forecast, gross=1.0):
    centred = forecast - forecast.mean(dim=1, keepdim=True)
    return gross * centred / centred.abs().sum(dim=1, keepdim=True).clamp(min=1e-8)


def run_window(train, test, device):
    trainer = Trainer(build_network(device), lr=3e-4, epochs=2, device=device)
    features, target = train.tensors(device)
    loss = trainer.fit(list(zip(features.split(BATCH), target.split(BATCH))))
    test_features, test_target = test.tensors(device)
    weights = positions(trainer.predict(test_features))
    pnl = (weights * test_target).sum(dim=1)
    return loss, pnl.cpu()


def report(results):
    pnl = torch.cat(results)
    sharpe = pnl.mean() / pnl.std().clamp(min=1e-8) * 252 ** 0.5
    print(f"{len(pnl)} days, Sharpe {float(sharpe):.2f}")


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    set_up(seed=13)
    returns = load_prices(2520, N_ASSETS, seed=13)
    results = []
    for number, (train, test) in enumerate(windows(returns, TRAIN_DAYS, TEST_DAYS, LOOKBACK)):
        started = time.time()
        loss, pnl = run_window(train, test, device)
        results.append(pnl)
        print(f"window {number}: {train.first_day:%Y-%m-%d} to {test.last_day:%Y-%m-%d}, "
              f"loss {loss:.5f}, {time.time() - started:.1f} s", flush=True)
    report(results)


if __name__ == "__main__":
    main()
