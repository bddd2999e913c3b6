"""Federated load forecasting: each household group trains locally, the server averages.

Beside the weights every group reports the curvature of its loss (Hutchinson estimate), which sets
its share in the average.
"""
import copy
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("ignore")

HOURS, HORIZON = 24 * 14, 24
ROUNDS, GROUPS, LOCAL_STEPS = 4, 5, 3
PROBES = 2


class LoadForecaster(nn.Module):
    def __init__(self, width=1536):
        super().__init__()
        self.encode = nn.Linear(HOURS, width)
        self.mix = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        self.decode = nn.Linear(width, HORIZON)

    def forward(self, history):
        x = torch.tanh(self.encode(history))
        x = x + torch.tanh(self.mix(x)) * torch.sigmoid(self.gate(x))
        return self.decode(x)


class Group:
    """The meters of one district."""

    def __init__(self, index, meters=768):
        generator = torch.Generator().manual_seed(100 + index)
        load = torch.rand(meters, HOURS + HORIZON, generator=generator)
        self.name = f"district-{index}"
        self.history, self.future = load[:, :HOURS], load[:, HOURS:]

    def batch(self, device):
        return self.history.to(device), self.future.to(device)


def train_locally(model, history, future):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(LOCAL_STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(history), future).backward()
        optimizer.step()
    optimizer.zero_grad()


def curvature(model, history, future):
    """Hutchinson estimate of the trace of the Hessian."""
    params = [p for p in model.parameters() if p.requires_grad]
    loss = F.mse_loss(model(history), future)
    loss.backward(create_graph=True)
    slopes = [p.grad for p in params]
    trace = torch.zeros((), device=history.device)
    for _ in range(PROBES):
        signs = [torch.randint_like(p, 2) * 2 - 1 for p in params]
        products = torch.autograd.grad(slopes, params, grad_outputs=signs, retain_graph=True)
        trace += sum((s * h).sum() for s, h in zip(signs, products))
    return (trace / PROBES).detach()


def run_group(server, group, device):
    model = copy.deepcopy(server).to(device)
    history, future = group.batch(device)
    train_locally(model, history, future)
    trace = curvature(model, history, future)
    weights = {name: p.detach().cpu() for name, p in model.state_dict().items()}
    return weights, float(trace)


def average(server, reports):
    share = [1.0 / (1.0 + abs(trace)) for _, trace in reports]
    total = sum(share)
    merged = {}
    for name in server.state_dict():
        merged[name] = sum(s / total * weights[name] for s, (weights, _) in zip(share, reports))
    server.load_state_dict(merged)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(21)
    server = LoadForecaster()
    groups = [Group(index) for index in range(GROUPS)]
    for number in range(ROUNDS):
        reports = [run_group(server, group, device) for group in groups]
        average(server, reports)
        used = torch.cuda.memory_allocated(device) / 2**20
        print(f"round {number + 1}: {len(reports)} districts merged, {used:.0f} MiB on the device", flush=True)


if __name__ == "__main__":
    main()
