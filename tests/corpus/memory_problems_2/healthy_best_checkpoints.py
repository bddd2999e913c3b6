"""Healthy: training with an evaluation every twenty-five steps that keeps the three best weights on the GPU.

Why it may look like a leak: each evaluation holds outputs for a moment, and the first three keep a copy of the weights.
Why it is none: outputs go to the CPU and are dropped; the list is cut to Config.keep checkpoints, a documented number.
"""
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class Config:
    width: int = 1024
    layers: int = 4
    inputs: int = 64
    batch_size: int = 64
    steps: int = 250
    evaluate_every: int = 25
    keep: int = 3


@dataclass(order=True)
class Checkpoint:
    error: float
    step: int
    weights: dict = field(compare=False, repr=False)


class Regressor(nn.Module):
    def __init__(self, config):
        super().__init__()
        layers = [nn.Linear(config.inputs, config.width), nn.GELU()]
        for _ in range(config.layers):
            layers += [nn.Linear(config.width, config.width), nn.GELU(), nn.Dropout(0.1)]
        self.net = nn.Sequential(*layers, nn.Linear(config.width, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


class BestCheckpoints:
    """The weights of the evaluations with the smallest errors, for the averaging at the end."""

    def __init__(self, keep):
        self.keep = keep
        self.items = []

    def offer(self, error, step, model):
        weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
        self.items.append(Checkpoint(error, step, weights))
        self.items.sort()
        del self.items[self.keep:]

    def average(self):
        names = self.items[0].weights
        return {name: torch.stack([item.weights[name] for item in self.items]).mean(dim=0) for name in names}


def make_loader(rows, inputs, batch_size, shuffle, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=generator)
    y = x[:, :4].sum(dim=1) + 0.1 * torch.randn(rows, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, shuffle=shuffle, pin_memory=True, drop_last=True)


def forever(loader):
    while True:
        yield from loader


@torch.inference_mode()
def evaluate(model, loader, device):
    model.eval()
    predictions, targets = [], []
    for x, y in loader:
        predictions.append(model(x.to(device, non_blocking=True)).cpu())
        targets.append(y)
    model.train()
    return (torch.cat(predictions) - torch.cat(targets)).square().mean().item()


def train(config, device):
    model = Regressor(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
    train_loader = make_loader(4096, config.inputs, config.batch_size, True, seed=1)
    valid_loader = make_loader(1024, config.inputs, 256, False, seed=2)
    best = BestCheckpoints(config.keep)
    history = []
    for step, (x, y) in zip(range(1, config.steps + 1), forever(train_loader)):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        warmup.step()
        history.append(loss.item())
        if step % config.evaluate_every == 0:
            error = evaluate(model, valid_loader, device)
            best.offer(error, step, model)
            print(f"step {step} loss {history[-1]:.4f} error {error:.4f} kept {[item.step for item in best.items]} "
                  f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    model.load_state_dict(best.average())
    print(f"averaged model: error {evaluate(model, valid_loader, device):.4f}")


def main():
    torch.manual_seed(0)
    train(Config(), torch.device("cuda"))
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
