"""Track the Hessian trace of a keyword-spotting network over its saved checkpoints."""
import sys

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class ConvBlock(nn.Module):
    def __init__(self, c_in, c_out, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(c_in, c_out, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(8, c_out)
        self.skip = nn.Conv2d(c_in, c_out, 1, stride=stride) if (stride != 1 or c_in != c_out) else nn.Identity()

    def forward(self, x):
        return torch.tanh(self.norm(self.conv(x)) + self.skip(x))


class KeywordNet(nn.Module):
    def __init__(self, width=48, classes=35):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.body = nn.Sequential(
            ConvBlock(width, width),
            ConvBlock(width, 2 * width, stride=2),
            ConvBlock(2 * width, 2 * width),
            ConvBlock(2 * width, 4 * width, stride=2),
        )
        self.head = nn.Linear(4 * width, classes)

    def forward(self, mel):
        x = self.body(torch.tanh(self.stem(mel)))
        return self.head(x.mean(dim=(2, 3)))


class CheckpointSeries:
    """Weights saved every `every` steps of a training run."""

    def __init__(self, count, every=500):
        self.steps = [i * every for i in range(count)]
        self.base = KeywordNet().state_dict()

    def __iter__(self):
        rng = np.random.default_rng(7)
        for step in self.steps:
            scale = 1.0 + 0.05 * rng.standard_normal()
            yield step, {name: w * scale for name, w in self.base.items()}


def calibration_batch(device, size=20, mels=64, frames=98):
    gen = torch.Generator().manual_seed(3)
    mel = torch.randn(size, 1, mels, frames, generator=gen)
    label = torch.randint(0, 35, (size,), generator=gen)
    return mel.to(device), label.to(device)


def rademacher_like(params):
    return [torch.randint_like(p, 0, 2) * 2 - 1 for p in params]


def hessian_trace(model, mel, label, probes=3):
    model.eval()
    params = [p for p in model.parameters() if p.requires_grad]
    loss = F.cross_entropy(model(mel), label)
    loss.backward(create_graph=True)
    grads = [p.grad for p in params]
    estimates = []
    for _ in range(probes):
        v = rademacher_like(params)
        hv = torch.autograd.grad(grads, params, grad_outputs=v, retain_graph=True)
        estimates.append(sum((a * b).sum() for a, b in zip(v, hv)).item())
    return float(np.mean(estimates)), loss.item()


def load_model(state, device):
    model = KeywordNet()
    model.load_state_dict(state)
    return model.to(device)


def main(device):
    mel, label = calibration_batch(device)
    rows = []
    for step, state in CheckpointSeries(count=24):
        model = load_model(state, device)
        trace, loss = hessian_trace(model, mel, label)
        rows.append((step, loss, trace))
        print(f"step {step:6d}  loss {loss:8.4f}  tr(H) {trace:10.3f}", flush=True)
    table = np.array(rows)
    print("sharpest checkpoint:", int(table[table[:, 2].argmax(), 0]))


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
