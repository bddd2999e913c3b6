"""Trains a U-Net for the segmentation of road images at the resolution of the camera.

True cause: the activations of a batch of 48 images of 256 x 256 do not fit; the weights are only some megabytes.
The line: `BATCH_SIZE = 48`; the memory itself is taken by the convolutions of the first levels (`return self.body(x)`).
Cure: a batch of 8 to 12 with gradient accumulation over 4 steps (or autocast to bfloat16, or checkpointing of the
first two levels); nothing else in the program needs a change.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 48  # CAUSE
IMAGE_SIZE = 256
CLASSES = 19
EPOCHS = 2


class DoubleConv(nn.Module):
    def __init__(self, c_in, c_out):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
            nn.BatchNorm2d(c_out),
            nn.ReLU(),
        )

    def forward(self, x):
        return self.body(x)  # CAUSE


class UNet(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.down = nn.ModuleList()
        c = 3
        for w in widths:
            self.down.append(DoubleConv(c, w))
            c = w
        self.up = nn.ModuleList()
        self.fuse = nn.ModuleList()
        for w in reversed(widths[:-1]):
            self.up.append(nn.ConvTranspose2d(c, w, 2, stride=2))
            self.fuse.append(DoubleConv(2 * w, w))
            c = w
        self.head = nn.Conv2d(c, CLASSES, 1)

    def forward(self, x):
        skips = []
        for i, block in enumerate(self.down):
            x = block(x)
            if i < len(self.down) - 1:
                skips.append(x)
                x = F.max_pool2d(x, 2)
        for up, fuse in zip(self.up, self.fuse):
            x = fuse(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    images = torch.zeros(96, 3, IMAGE_SIZE, IMAGE_SIZE)
    masks = torch.zeros(96, IMAGE_SIZE, IMAGE_SIZE, dtype=torch.long)
    loader = DataLoader(TensorDataset(images, masks), batch_size=BATCH_SIZE, shuffle=True, drop_last=True)

    model = UNet().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss(ignore_index=255)

    for epoch in range(EPOCHS):
        model.train()
        running = 0.0
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        print(f"epoch {epoch}: loss {running / len(loader):.4f}")


if __name__ == "__main__":
    main()
