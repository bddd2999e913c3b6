"""Nitrogen content of leaves from hyperspectral images of a phenotyping greenhouse."""
import random

import torch
from torch import nn
from torch.utils.data import Dataset, DataLoader, Subset

BANDS = 204
SIDE = 128


class LeafCubes(Dataset):
    """All cubes of one season, normalised with the season's white reference."""

    def __init__(self, plants, device, seed=0):
        rng = random.Random(seed)
        white = torch.linspace(0.8, 1.0, BANDS).view(BANDS, 1, 1).to(device)
        self.cubes = []
        self.nitrogen = []
        for _ in range(plants):
            cube = torch.empty(BANDS, SIDE, SIDE).fill_(rng.random())
            self.cubes.append(cube.to(device) / white)
            self.nitrogen.append(rng.uniform(1.0, 5.0))
        self.nitrogen = torch.tensor(self.nitrogen, device=device)

    def __len__(self):
        return len(self.cubes)

    def __getitem__(self, index):
        return self.cubes[index], self.nitrogen[index]


class SpectralNet(nn.Module):
    def __init__(self, width=128, blocks=4):
        super().__init__()
        self.reduce = nn.Conv2d(BANDS, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.GELU())
            for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, cube):
        x = self.reduce(cube)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(dim=(2, 3))).squeeze(1)


def split(dataset, fraction, seed=1):
    order = list(range(len(dataset)))
    random.Random(seed).shuffle(order)
    cut = int(fraction * len(order))
    return Subset(dataset, order[:cut]), Subset(dataset, order[cut:])


def run_epoch(net, loader, optimizer=None):
    net.train(optimizer is not None)
    total, count = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for cube, nitrogen in loader:
            loss = nn.functional.smooth_l1_loss(net(cube), nitrogen)
            if optimizer is not None:
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
            total += loss.item() * len(cube)
            count += len(cube)
    return total / count


def main():
    torch.manual_seed(0)
    device = torch.device("cuda:0")
    season = LeafCubes(plants=140, device=device)
    train, valid = split(season, 0.85)
    net = SpectralNet().to(device)
    optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-4, momentum=0.9)
    best = float("inf")
    for epoch in range(6):
        train_error = run_epoch(net, DataLoader(train, batch_size=16, shuffle=True, drop_last=True), optimizer)
        valid_error = run_epoch(net, DataLoader(valid, batch_size=16))
        best = min(best, valid_error)
        print(f"epoch {epoch}: train {train_error:.3f} valid {valid_error:.3f} best {best:.3f}", flush=True)


if __name__ == "__main__":
    main()
