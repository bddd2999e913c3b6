"""Multi-task molecule model: a task gets its tower (and its optimizer) when its first batch comes."""
import itertools

import torch
from torch import nn

TASKS = ["solubility", "toxicity", "permeability", "clearance", "binding", "half-life", "logp", "pka"]


class Tower(nn.Module):
    def __init__(self, width=1536):
        super().__init__()
        self.layers = nn.Sequential(nn.LazyLinear(width), nn.SiLU(), nn.LazyLinear(width), nn.SiLU(), nn.LazyLinear(1))

    def forward(self, x):
        return self.layers(x).squeeze(-1)


class MultiTask(nn.Module):
    def __init__(self, fingerprint=2048, width=1024):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(fingerprint, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.towers = nn.ModuleDict()

    def forward(self, fingerprints, task):
        return self.towers[task](self.trunk(fingerprints))


class Training:
    def __init__(self, device):
        self.device = device
        self.model = MultiTask().to(device)
        self.optimizers = {"trunk": torch.optim.AdamW(self.model.trunk.parameters(), lr=1e-4)}

    def ensure(self, task, example):
        if task in self.model.towers:
            return
        tower = Tower().to(self.device)
        with torch.no_grad():
            tower(self.model.trunk(example))
        self.model.towers[task] = tower
        self.optimizers[task] = torch.optim.RMSprop(tower.parameters(), lr=1e-4, momentum=0.9)

    def step(self, task, fingerprints, values):
        fingerprints, values = fingerprints.to(self.device), values.to(self.device)
        self.ensure(task, fingerprints[:2])
        loss = nn.functional.smooth_l1_loss(self.model(fingerprints, task), values)
        used = (self.optimizers["trunk"], self.optimizers[task])
        for optimizer in used:
            optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for optimizer in used:
            optimizer.step()
        return loss.item()


def schedule(rounds):
    """Easy tasks first; another one joins every fifteen rounds."""
    for number in range(rounds):
        yield from TASKS[: 1 + min(number // 15, len(TASKS) - 1)]


def main():
    training = Training(torch.device("cuda"))
    rows = torch.randint(0, 2, (256, 2048)).float()
    for number, task in enumerate(itertools.islice(schedule(160), 900)):
        loss = training.step(task, rows, torch.randn(256))
        if number % 100 == 0:
            print(f"{number}: {task} {loss:.3f}, {len(training.model.towers)} towers, "
                  f"{torch.cuda.memory_allocated() >> 20} MiB")
    print(sorted(training.model.towers), torch.cuda.memory_allocated() >> 20, "MiB")


if __name__ == "__main__":
    main()
