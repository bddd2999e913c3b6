"""Kind of report: "register_forward_hook leaks" (PyTorch issues and forum; feature extraction for plots after each epoch).

True cause: every epoch registers new hooks and never removes them, so that the hooks of all earlier epochs run on, and
each appends the activations of every batch to a dictionary that only the hook still knows.
The line: `module.register_forward_hook(keep(name))` with `features[name].append(output.detach())`.
Cure: keep the handles and call handle.remove() after the plot (a context manager or try/finally).
"""

import collections

import torch
from torch import nn


class SmallResNet(nn.Module):
    def __init__(self, width=32, blocks=3, classes=10):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()) for _ in range(blocks)
        )
        self.fc = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.fc(x.mean((2, 3)))


def watch(model):
    features = collections.defaultdict(list)

    def keep(name):
        def hook(module, inputs, output):
            features[name].append(output.detach())  # CAUSE

        return hook

    for name, module in model.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(keep(name))  # CAUSE
    return features


def plot_statistics(model, images, epoch):
    features = watch(model)
    model.eval()
    with torch.no_grad():
        model(images.cuda())
    for name, outputs in features.items():
        mean = torch.cat(outputs).mean().item()
        print(f"  epoch {epoch} {name}: mean {mean:.4f}")


def main():
    torch.manual_seed(25)
    model = SmallResNet().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    samples = torch.zeros(8, 3, 32, 32)
    for epoch in range(6):
        model.train()
        for _ in range(25):
            x = torch.zeros(32, 3, 32, 32).cuda()
            y = torch.randint(0, 10, (32,)).cuda()
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        plot_statistics(model, samples, epoch)


if __name__ == "__main__":
    main()
