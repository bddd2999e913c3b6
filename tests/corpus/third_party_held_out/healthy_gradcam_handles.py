"""Explains predictions with Grad-CAM: two hooks for each request, removed by a context manager whatever happens."""

import contextlib
import random
import sys

import torch
from torch import nn


class Refused(ValueError):
    pass


@contextlib.contextmanager
def recorded(layer):
    found = {}

    def forward(_module, _inputs, output):
        found["activation"] = output
        output.register_hook(lambda gradient: found.__setitem__("gradient", gradient))

    handle = layer.register_forward_hook(forward)
    try:
        yield found
    finally:
        handle.remove()
        found.clear()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.high = nn.Conv2d(8, 24, 3, stride=2, padding=1)
        self.head = nn.Linear(24, 10)

    def forward(self, image):
        hidden = torch.relu(self.high(torch.relu(self.low(image))))
        return self.head(hidden.mean(dim=(2, 3)))


def explain(model, image, label):
    with recorded(model.high) as found:
        logits = model(image)
        if label >= logits.shape[1]:
            raise Refused(label)
        logits[0, label].backward()
        weights = found["gradient"].mean(dim=(2, 3), keepdim=True)
        heat = torch.relu((weights * found["activation"]).sum(dim=1))
    model.zero_grad()
    return heat.detach()


def main():
    device = sys.argv[1]
    torch.manual_seed(83)
    torch.set_num_threads(1)
    rng = random.Random(83)
    model = Network().to(device)
    refused = 0
    for _ in range(300):
        image = torch.rand(1, 3, rng.choice([32, 48, 64]), 48, device=device)
        try:
            explain(model, image, rng.randrange(12))
        except Refused:
            refused += 1
    print(f"{refused} refused, {len(model.high._forward_hooks)} hooks left")


if __name__ == "__main__":
    main()
