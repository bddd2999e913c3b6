"""Gradient boosting with small networks for the demand of an electricity grid."""
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class BoostingPlan:
    rounds: int = 15
    steps: int = 25
    shrinkage: float = 0.3
    inputs: int = 168
    outputs: int = 24
    hidden: int = 2048
    batch: int = 512


@dataclass
class Ensemble:
    shrinkage: float
    members: list = field(default_factory=list)

    def predict(self, x):
        total = 0.0
        with torch.no_grad():
            for member in self.members:
                total = total + self.shrinkage * member(x)
        return total

    def add(self, member):
        for parameter in member.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None
        self.members.append(member.eval())

    def size(self):
        return sum(p.numel() for m in self.members for p in m.parameters())


def weak_learner(plan):
    return nn.Sequential(nn.Linear(plan.inputs, plan.hidden), nn.ReLU(), nn.Linear(plan.hidden, plan.hidden),
                         nn.ReLU(), nn.Linear(plan.hidden, plan.outputs))


class DemandHistory:
    def __init__(self, plan, seed):
        self.plan = plan
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, device):
        hours = torch.rand(self.plan.batch, self.plan.inputs, generator=self.generator)
        return hours.to(device), hours[:, -self.plan.outputs:].to(device)


def boost(plan, device):
    ensemble = Ensemble(plan.shrinkage)
    history = DemandHistory(plan, seed=6)
    for number in range(plan.rounds):
        learner = weak_learner(plan).to(device)
        optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
        for _ in range(plan.steps):
            x, y = history.sample(device)
            residual = y - ensemble.predict(x)
            loss = (learner(x) - residual).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        ensemble.add(learner)
        print(f"round {number + 1}: loss {loss.item():.4f}, {ensemble.size() / 1e6:.1f}M weights, "
              f"{torch.cuda.memory_allocated() >> 20} MiB", flush=True)
    return ensemble


def main():
    torch.manual_seed(6)
    plan, device = BoostingPlan(), torch.device("cuda")
    ensemble = boost(plan, device)
    x, y = DemandHistory(plan, seed=77).sample(device)
    print("members", len(ensemble.members), "error", (ensemble.predict(x) - y).abs().mean().item())


if __name__ == "__main__":
    main()
