"""Trains on satellite tiles; the data set caches what it decoded and normalized, so that later epochs are faster.

The place and the flip of the random crop are part of the key, so hardly any entry is ever used again.
"""

import random
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class TileDataset(Dataset):
    def __init__(self, tiles, size, seed, device):
        self.size = size
        self.device = device
        self.rng = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.raw = torch.randint(0, 256, (tiles, 4, 96, 96), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(0, 6, (tiles,), generator=generator)
        self.decoded = {}

    def __len__(self):
        return len(self.raw)

    def decode(self, index, top, left, flip):
        crop = self.raw[index, :, top : top + self.size, left : left + self.size].to(self.device).float()
        if flip:
            crop = crop.flip(2)
        mean = crop.mean(dim=(1, 2), keepdim=True)
        return (crop - mean) / crop.std().clamp_min(1.0)  # LEAK

    def __getitem__(self, index):
        key = (index, self.rng.randint(0, 96 - self.size), self.rng.randint(0, 96 - self.size), self.rng.random() < 0.5)
        if key not in self.decoded:
            self.decoded[key] = self.decode(*key)  # LEAK
        return self.decoded[key], self.labels[index]


def make_model():
    return nn.Sequential(
        nn.Conv2d(4, 12, 5, stride=2), nn.ReLU(), nn.Conv2d(12, 24, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 6)
    )


def main():
    device = sys.argv[1]
    torch.manual_seed(10)
    torch.set_num_threads(1)
    dataset = TileDataset(tiles=192, size=32, seed=11, device=device)
    loader = DataLoader(dataset, batch_size=12, shuffle=True, generator=torch.Generator().manual_seed(12))
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(18):
        total = 0.0
        for tiles, labels in loader:  # LEAK
            loss = nn.functional.cross_entropy(model(tiles), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        if epoch % 6 == 5:
            print(f"epoch {epoch}: {total / len(loader):.4f}")


if __name__ == "__main__":
    main()
