"""A classifier service that explains some of its answers: it hooks a layer, runs the model and shows where it looked.

A request for an unknown class leaves before the hook is removed.
From then on that hook copies the activation of each request.
"""

import random
import sys

import torch
from torch import nn


class UnknownClass(ValueError):
    pass


class Explainer:
    def __init__(self, model, layer, classes):
        self.model = model
        self.layer = layer
        self.classes = classes

    def explain(self, image, name):
        captured = {}

        def keep(_module, _inputs, output):
            captured["activation"] = output.detach().clone()  # LEAK

        handle = self.layer.register_forward_hook(keep)  # LEAK
        logits = self.model(image)
        if name not in self.classes:
            raise UnknownClass(name)
        weights = self.model[-1].weight[self.classes[name]]
        heat = (captured["activation"] * weights[: captured["activation"].shape[1], None, None]).sum(1)
        handle.remove()
        return logits, torch.relu(heat)


class Service:
    def __init__(self, device):
        self.device = device
        self.model = nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 10),
        ).to(device)
        self.explainer = Explainer(self.model, self.model[2], {f"class-{i}": i for i in range(10)})

    @torch.no_grad()
    def handle(self, wanted):
        image = torch.randn(1, 3, 96, 96, device=self.device)
        if wanted is None:
            return self.model(image)
        return self.explainer.explain(image, wanted)


def main():
    torch.manual_seed(24)
    torch.set_num_threads(1)
    rng = random.Random(24)
    service = Service(sys.argv[1])
    refused = 0
    for _ in range(360):
        wanted = f"class-{rng.randrange(14)}" if rng.random() < 0.5 else None
        try:
            service.handle(wanted)
        except UnknownClass:
            refused += 1
    print(f"{refused} requests named an unknown class")


if __name__ == "__main__":
    main()
