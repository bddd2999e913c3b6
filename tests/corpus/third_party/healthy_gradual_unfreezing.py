"""Fine-tunes a model whose layers are unfrozen one by one: gradients and Adam's moments appear in stages."""

import sys

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, depth=5, width=96):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.head = nn.Linear(width, 7)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)

    def unfreeze(self, number):
        self.layers[number].requires_grad_(True)


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(6)
    torch.set_num_threads(1)
    model = Classifier().to(device)
    for layer in model.layers:
        layer.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    steps_per_stage = 50
    for step in range(6 * steps_per_stage + 100):
        stage, first = divmod(step, steps_per_stage)
        if first == 0 and 1 <= stage <= len(model.layers):
            model.unfreeze(len(model.layers) - stage)
        x = torch.randn(48, 96, device=device)
        y = torch.randint(0, 7, (48,), device=device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(sum(p.requires_grad for p in model.parameters()), "parameters train in the end")


if __name__ == "__main__":
    main()
