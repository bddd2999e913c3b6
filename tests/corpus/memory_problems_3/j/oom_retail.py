"""Store-level demand forecast with entity embeddings."""
import argparse

import torch
import torch.nn as nn

from demand.features import NUMERIC, SalesEncoder, load_sales
from demand.network import DemandNet

EMBED_DIMS = {"store": 16, "item": 64, "family": 16, "weekday": 4}


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("device", nargs="?", default="cuda")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps-per-epoch", type=int, default=12)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=3)
    return parser.parse_args()


def build_model(encoder, device):
    with torch.device(device):
        return DemandNet(encoder.vocab_sizes, EMBED_DIMS, len(NUMERIC))


def iterate(tensors, batch_size, generator):
    order = torch.randperm(len(tensors[0]), generator=generator)
    for chunk in order.split(batch_size):
        yield tuple(t[chunk] for t in tensors)


class Forecaster:
    def __init__(self, model, lr, device):
        self.model, self.device = model, device
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss = nn.HuberLoss(delta=1.0)

    def fit_epoch(self, tensors, batch_size, max_steps, generator):
        self.model.train()
        total = 0.0
        for step, batch in enumerate(iterate(tensors, batch_size, generator)):
            if step == max_steps:
                break
            codes, numeric, units = (t.to(self.device) for t in batch)
            loss = self.loss(self.model(codes, numeric), units)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
            if step % 4 == 0:
                print(f"  step {step:3d} loss {loss.item():.4f}", flush=True)
        return total / max_steps

    @torch.no_grad()
    def score(self, tensors, batch_size):
        self.model.eval()
        errors = []
        for batch in zip(*(t.split(batch_size) for t in tensors)):
            codes, numeric, units = (t.to(self.device) for t in batch)
            errors.append((self.model(codes, numeric) - units).abs().mean().item())
        return sum(errors) / len(errors)


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    sales = load_sales(args.rows, args.seed)
    cut = int(0.9 * len(sales))
    encoder = SalesEncoder().fit(sales)
    train, valid = encoder.transform(sales[:cut]), encoder.transform(sales[cut:])
    print(f"{cut} rows for training, {sales['item'].nunique()} items, {sales['store'].nunique()} stores", flush=True)

    forecaster = Forecaster(build_model(encoder, args.device), args.lr, args.device)
    for epoch in range(args.epochs):
        mean = forecaster.fit_epoch(train, args.batch_size, args.steps_per_epoch, generator)
        print(f"epoch {epoch}: loss {mean:.4f}, valid MAE {forecaster.score(valid, args.batch_size):.4f}", flush=True)


if __name__ == "__main__":
    main()
