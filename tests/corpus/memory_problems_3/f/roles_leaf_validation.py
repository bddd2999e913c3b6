"""Plant disease classifier with a validation pass after every epoch."""
import time

import torch
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

from membook import PeakWatch, gradients, optimizer_tensors, report, storage_bytes

EPOCHS = 4
CLASSES = 38


def make_loaders(seed=5):
    g = torch.Generator().manual_seed(seed)

    def split(n):
        return TensorDataset(torch.rand(n, 3, 64, 64, generator=g), torch.randint(0, CLASSES, (n,), generator=g))

    return (DataLoader(split(80), batch_size=16, shuffle=True),
            DataLoader(split(192), batch_size=96))


class Residual(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(cout), nn.BatchNorm2d(cout)
        self.short = nn.Conv2d(cin, cout, 1, stride) if (cin, stride) != (cout, 1) else nn.Identity()

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.short(x))


def build_model():
    return nn.Sequential(
        Residual(3, 64, 1), Residual(64, 128, 2), Residual(128, 256, 2), Residual(256, 512, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


def sizes_now(model, optimizer, *batch):
    return {
        "parameters": storage_bytes(model.parameters()),
        "buffers": storage_bytes(model.buffers()),
        "gradients": storage_bytes(gradients(model)),
        "optimizer state": storage_bytes(optimizer_tensors(optimizer)),
        "activations": 0,
        "inputs": storage_bytes(batch),
    }


@torch.no_grad()
def validate(model, loader, criterion):
    model.eval()
    total = sum(criterion(model(x.cuda()), y.cuda()).item() * len(x) for x, y in loader)
    model.train()
    return total / len(loader.dataset)


def main():
    torch.manual_seed(5)
    train, valid = make_loaders()
    model = build_model().cuda()
    optimizer = optim.RMSprop(model.parameters(), lr=1e-4, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    watch, sizes, step = PeakWatch(), None, 0
    for epoch in range(1, EPOCHS + 1):
        begin = time.time()
        for x, y in train:
            step += 1
            x, y = x.cuda(), y.cuda()
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            watch.check(step, "forward")
            loss.backward()
            watch.check(step, "backward")
            if step == 15:
                sizes = sizes_now(model, optimizer, x, y)
            optimizer.step()
            watch.check(step, "optimizer step")
        val = validate(model, valid, criterion)
        watch.check(step, f"validation after epoch {epoch}")
        print(f"epoch {epoch} val {val:.3f} {time.time() - begin:.1f}s")
    report(watch, sizes)


if __name__ == "__main__":
    main()
