"""Trains a 3D U-Net on CT patches for organ segmentation."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class TrainingConfig:
    patch_size: tuple = (96, 128, 128)
    batch_size: int = 12
    base_channels: int = 32
    organs: int = 14
    epochs: int = 2
    learning_rate: float = 1e-2
    workers: int = 0


class PatchDataset(Dataset):
    def __init__(self, patch_size, cases=24):
        self.patch_size = patch_size
        self.cases = cases

    def __len__(self):
        return self.cases

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        volume = torch.randn(1, *self.patch_size, generator=generator)
        labels = torch.zeros(self.patch_size, dtype=torch.uint8)
        return volume, labels


class ConvNormAct(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(
            nn.Conv3d(inputs, outputs, 3, padding=1),
            nn.InstanceNorm3d(outputs, affine=True),
            nn.LeakyReLU(0.01),
        )


class Stage(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(ConvNormAct(inputs, outputs), ConvNormAct(outputs, outputs))


class UNet3d(nn.Module):
    def __init__(self, base, organs, depth=4):
        super().__init__()
        widths = [min(base * 2 ** level, 320) for level in range(depth)]
        self.down = nn.ModuleList()
        previous = 1
        for width in widths:
            self.down.append(Stage(previous, width))
            previous = width
        self.up, self.merge = nn.ModuleList(), nn.ModuleList()
        for width in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose3d(previous, width, 2, stride=2))
            self.merge.append(Stage(2 * width, width))
            previous = width
        self.head = nn.Conv3d(previous, organs, 1)
        self.pool = nn.MaxPool3d(2)

    def forward(self, x):
        skips = []
        for level, stage in enumerate(self.down):
            x = stage(x if level == 0 else self.pool(x))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


def dice_and_cross_entropy(logits, labels):
    cross_entropy = nn.functional.cross_entropy(logits, labels.long())
    probabilities = logits.softmax(dim=1)
    foreground = probabilities[:, 1:].sum(dim=(2, 3, 4))
    return cross_entropy + 1.0 - (2.0 * foreground / (foreground + 1.0)).mean()


def train(config, device):
    loader = DataLoader(PatchDataset(config.patch_size), batch_size=config.batch_size, shuffle=True,
                        num_workers=config.workers)
    model = UNet3d(config.base_channels, config.organs).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.learning_rate, momentum=0.99, nesterov=True)
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count / 1e6:.1f} M parameters, patches of {config.patch_size}")
    for epoch in range(config.epochs):
        for volumes, labels in loader:
            volumes, labels = volumes.to(device), labels.to(device)
            loss = dice_and_cross_entropy(model(volumes), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 12.0)
            optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":
    torch.manual_seed(1)
    train(TrainingConfig(), torch.device("cuda"))
