"""Weather model: the archive is brought to the GPU year by year in the first epoch and stays there for the others."""
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Settings:
    years: int = 16
    days: int = 365
    variables: int = 6
    grid: tuple = (32, 64)
    epochs: int = 4
    batch: int = 73


class Archive:
    """Files of a year, read once."""

    def __init__(self, settings, device):
        self.settings = settings
        self.device = device
        self.resident = {}

    def _read(self, year):
        values = torch.zeros(self.settings.days, self.settings.variables, *self.settings.grid, dtype=torch.float16)
        values += year % 7
        return values

    def year(self, year):
        if year not in self.resident:
            self.resident[year] = self._read(year).to(self.device, non_blocking=True)
        return self.resident[year]

    @property
    def mebibytes(self):
        return sum(values.nbytes for values in self.resident.values()) / 2**20


class Forecast(nn.Module):
    def __init__(self, variables, width=96, blocks=4):
        super().__init__()
        self.enter = nn.Conv2d(variables, width, 3, padding=1, padding_mode="circular")
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, padding_mode="circular"), nn.GELU(), nn.Conv2d(width, width, 1))
            for _ in range(blocks)
        )
        self.leave = nn.Conv2d(width, variables, 1)

    def forward(self, today):
        x = self.enter(today)
        for block in self.blocks:
            x = x + block(x)
        return today + self.leave(x)


def run(settings):
    device = torch.device("cuda")
    archive = Archive(settings, device)
    model = Forecast(settings.variables).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(settings.epochs):
        total = torch.zeros((), device=device)
        for year in range(settings.years):
            days = archive.year(year)
            for start in range(0, settings.days - 1, settings.batch):
                today = days[start:start + settings.batch].float()
                tomorrow = days[start + 1:start + 1 + settings.batch].float()
                today = today[: len(tomorrow)]
                loss = nn.functional.l1_loss(model(today), tomorrow)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                total += loss.detach()
            if epoch == 0 and year % 4 == 3:
                print(f"year {year}: archive {archive.mebibytes:.0f} MiB, {torch.cuda.memory_allocated() >> 20} MiB in all")
        print(f"epoch {epoch}: {total.item() / settings.years:.4f}, {torch.cuda.memory_allocated() >> 20} MiB")


if __name__ == "__main__":
    run(Settings())
