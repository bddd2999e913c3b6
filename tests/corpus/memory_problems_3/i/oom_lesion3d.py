"""Train a small 3D U-Net on liver CT volumes with random patches."""
import sys
import time

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


def read_volume(case):
    """Stands for reading a NIfTI file: int16 Hounsfield units and uint8 labels."""
    rng = np.random.default_rng(case)
    depth = 96 + 8 * int(rng.integers(0, 5))
    image = np.full((depth, 256, 256), -1000, dtype=np.int16)
    label = np.zeros((depth, 256, 256), dtype=np.uint8)
    z, y, x = rng.integers(20, 60), rng.integers(60, 120), rng.integers(60, 120)
    image[z:z + 30, y:y + 90, x:x + 90] = 60
    label[z + 5:z + 15, y + 20:y + 50, x + 20:x + 50] = 1
    return image, label


class LiverDataset(Dataset):
    def __init__(self, cases, device, window=(-100.0, 250.0)):
        self.cases = list(cases)
        self.device = device
        self.window = window
        self.items = {}

    def __len__(self):
        return len(self.cases)

    def prepare(self, case):
        image, label = read_volume(case)
        image = torch.from_numpy(image).to(self.device).float()
        low, high = self.window
        image = image.clamp_(low, high).sub_(low).div_(high - low)
        target = F.one_hot(torch.from_numpy(label).to(self.device).long(), 2).movedim(-1, 0).float()
        return image[None], target

    def __getitem__(self, i):
        case = self.cases[i]
        if case not in self.items:
            self.items[case] = self.prepare(case)
        return self.items[case]


def random_patch(image, target, size=(48, 96, 96), rng=np.random.default_rng(1)):
    corner = [int(rng.integers(0, n - s + 1)) for n, s in zip(image.shape[1:], size)]
    box = (slice(None),) + tuple(slice(c, c + s) for c, s in zip(corner, size))
    return image[box], target[box]


def collate(samples):
    patches = [random_patch(*s) for s in samples]
    return torch.stack([p[0] for p in patches]), torch.stack([p[1] for p in patches])


def conv3(c_in, c_out):
    return nn.Sequential(nn.Conv3d(c_in, c_out, 3, padding=1), nn.InstanceNorm3d(c_out), nn.LeakyReLU(0.01, inplace=True))


class SmallUNet(nn.Module):
    def __init__(self, width=8, classes=2):
        super().__init__()
        self.enc1 = conv3(1, width)
        self.enc2 = conv3(width, 2 * width)
        self.enc3 = conv3(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.dec2 = conv3(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.dec1 = conv3(2 * width, width)
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x):
        a = self.enc1(x)
        b = self.enc2(F.max_pool3d(a, 2))
        c = self.enc3(F.max_pool3d(b, 2))
        b = self.dec2(torch.cat([self.up2(c), b], 1))
        a = self.dec1(torch.cat([self.up1(b), a], 1))
        return self.head(a)


def dice_loss(logits, target):
    prob = logits.softmax(1)
    inter = (prob * target).sum((2, 3, 4))
    return 1 - (2 * inter / (prob.sum((2, 3, 4)) + target.sum((2, 3, 4)) + 1e-5)).mean()


def run_epoch(model, loader, optimizer):
    total = 0.0
    for step, (image, target) in enumerate(loader):
        optimizer.zero_grad(set_to_none=True)
        loss = dice_loss(model(image), target)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / (step + 1)


def main(device):
    torch.manual_seed(0)
    train = LiverDataset(range(131), device)
    loader = DataLoader(train, batch_size=2, shuffle=True, collate_fn=collate)
    model = SmallUNet().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(2):
        start = time.time()
        loss = run_epoch(model, loader, optimizer)
        print(f"epoch {epoch}  dice loss {loss:.4f}  {time.time() - start:.1f}s", flush=True)


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
