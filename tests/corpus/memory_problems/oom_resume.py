"""Resumes the training of a mixer network from the checkpoint of an earlier run.

True cause: the checkpoint (weights, averaged weights and momenta) is loaded onto the device beside the model
that is already there, so that both sets of weights are there twice for a moment.
The line: `checkpoint = torch.load(path, map_location=device)`.
Cure: map_location="cpu" (also with mmap=True); load_state_dict copies the values into the models anyway.
"""

import argparse
import os
import tempfile

import torch
from torch import nn


def build_model(width=2368, depth=5):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def write_previous_run(path):
    """What an earlier job left on the disk."""
    with torch.device("meta"):
        weights = build_model().state_dict()
    state = {name: torch.zeros(value.shape) for name, value in weights.items()}
    momenta = {i: {"momentum_buffer": torch.zeros(v.shape)} for i, v in enumerate(state.values())}
    ema = {name: torch.zeros(value.shape) for name, value in state.items()}
    torch.save({"model": state, "ema": ema, "momenta": momenta, "epoch": 17}, path)


def resume(path, model, ema, optimizer, device):
    checkpoint = torch.load(path, map_location=device)  # CAUSE
    model.load_state_dict(checkpoint["model"])
    ema.load_state_dict(checkpoint["ema"])
    for i, parameter in enumerate(model.parameters()):
        momentum = checkpoint["momenta"][i]["momentum_buffer"]
        optimizer.state[parameter]["momentum_buffer"] = momentum.to(device)
    return checkpoint["epoch"] + 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        write_previous_run(path)

        with torch.device(args.device):
            model = build_model()
            ema = build_model().requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        start = resume(path, model, ema, optimizer, args.device)

    for epoch in range(start, args.epochs):
        x = torch.randn(64, 2368).to(args.device)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for averaged, current in zip(ema.parameters(), model.parameters()):
                averaged.lerp_(current, 0.001)
        print(epoch, loss.item())


if __name__ == "__main__":
    main()
