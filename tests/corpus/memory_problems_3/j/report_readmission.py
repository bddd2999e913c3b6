"""Hospital readmission risk with clipped and noised per-patient gradients."""
import sys
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore", category=UserWarning)


@dataclass
class Settings:
    epochs: int = 7
    batch: int = 48
    train_batches: int = 10
    check_batch: int = 4096
    check_rows: int = 24576
    clip: float = 1.0
    noise: float = 0.8
    lr: float = 0.05


def admissions(rows, seed):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(rows, 24)).astype("float32"), columns=[f"lab_{i}" for i in range(24)])
    frame["ward"] = rng.integers(0, 40, rows)
    frame["diagnosis"] = rng.integers(0, 900, rows)
    frame["readmitted"] = (rng.random(rows) < 0.13).astype("float32")
    return frame


def tensors(frame, device):
    labs = torch.from_numpy(frame.filter(like="lab_").to_numpy()).to(device)
    codes = torch.from_numpy(frame[["ward", "diagnosis"]].to_numpy()).to(device)
    return labs, codes, torch.from_numpy(frame["readmitted"].to_numpy()).to(device)


class RiskModel(nn.Module):
    def __init__(self, width=512):
        super().__init__()
        self.ward = nn.Embedding(40, 16).requires_grad_(False)
        self.diagnosis = nn.Embedding(900, 24).requires_grad_(False)
        self.enter = nn.Linear(64, width)
        self.hidden = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.risk = nn.Linear(width, 1)

    def forward(self, labs, codes):
        x = torch.cat([labs, self.ward(codes[:, 0]), self.diagnosis(codes[:, 1])], 1)
        x = F.silu(self.enter(x))
        for layer in self.hidden:
            x = x + F.silu(layer(x))
        return self.risk(x).squeeze(-1)


class PatientGradients:
    """Collects one gradient per patient for every linear layer and writes the private average to .grad."""

    def __init__(self, model, settings):
        self.settings = settings
        self.layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
        for layer in self.layers:
            layer.inputs, layer.samples = [], None
            layer.register_forward_hook(self.remember)
            layer.register_full_backward_hook(self.expand)

    def remember(self, layer, args, output):
        if layer.training:
            layer.inputs.append(args[0].detach())

    def expand(self, layer, grad_input, grad_output):
        x, g = layer.inputs.pop(), grad_output[0] * len(grad_output[0])
        layer.samples = (torch.einsum("bo,bi->boi", g, x), g)

    def privatize(self):
        squares = sum(w.square().sum((1, 2)) + b.square().sum(1) for w, b in (l.samples for l in self.layers))
        factor = (self.settings.clip / (squares.sqrt() + 1e-6)).clamp(max=1.0)
        for layer in self.layers:
            weight, bias = layer.samples
            layer.weight.grad = self.noisy(torch.einsum("b,boi->oi", factor, weight), len(factor))
            layer.bias.grad = self.noisy(factor @ bias, len(factor))
            layer.samples = None

    def noisy(self, total, count):
        return (total + self.settings.noise * self.settings.clip * torch.randn_like(total)) / count


def train_epoch(model, private, optimizer, data, settings, order):
    labs, codes, outcome = data
    total = torch.zeros((), device=labs.device)
    for index in order[: settings.batch * settings.train_batches].split(settings.batch):
        loss = F.binary_cross_entropy_with_logits(model(labs[index], codes[index]), outcome[index])
        optimizer.zero_grad()
        loss.backward()
        private.privatize()
        optimizer.step()
        total += loss.detach()
    return total / settings.train_batches


def check(model, data, settings):
    total, rows = 0.0, len(data[0])
    with torch.no_grad():
        for labs, codes, outcome in zip(*(t.split(settings.check_batch) for t in data)):
            total += F.binary_cross_entropy_with_logits(model(labs, codes), outcome, reduction="sum")
    return total / rows


def main(device):
    torch.manual_seed(4)
    settings = Settings()
    model = RiskModel().to(device)
    private = PatientGradients(model, settings)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=settings.lr, momentum=0.9)
    train = tensors(admissions(8192, seed=1), device)
    held_out = tensors(admissions(settings.check_rows, seed=2), device)
    for epoch in range(settings.epochs):
        order = torch.randperm(8192).to(device)
        loss = train_epoch(model, private, optimizer, train, settings, order)
        print(f"epoch {epoch}: train {float(loss):.4f} held out {float(check(model, held_out, settings)):.4f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
