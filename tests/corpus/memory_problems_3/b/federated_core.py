"""Clients and the server's averaging for the simulation of federated learning between clinics."""
import copy

import torch
from torch import nn


class XrayNet(nn.Module):
    def __init__(self, findings=14, width=64):
        super().__init__()
        layers, cin = [], 1
        for cout in (width, 2 * width, 4 * width, 8 * width, 16 * width):
            layers += [nn.Conv2d(cin, cout, 3, stride=2, padding=1), nn.BatchNorm2d(cout), nn.ReLU()]
            cin = cout
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten())
        self.head = nn.Sequential(nn.Linear(cin * 16, 1024), nn.ReLU(), nn.Linear(1024, findings))

    def forward(self, x):
        return self.head(self.features(x))


class Clinic:
    def __init__(self, name, images, seed):
        self.name = name
        self.images = images
        self.generator = torch.Generator().manual_seed(seed)
        self.model = None
        self.optimizer = None

    def receive(self, global_model, lr):
        self.model = copy.deepcopy(global_model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr, momentum=0.9)

    def local_epoch(self, batch_size, device):
        self.model.train()
        for _ in range(self.images // batch_size):
            x = torch.rand(batch_size, 1, 224, 224, generator=self.generator).to(device)
            y = (torch.rand(batch_size, 14, generator=self.generator) < 0.1).float().to(device)
            loss = nn.functional.binary_cross_entropy_with_logits(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


@torch.no_grad()
def average(global_model, clinics):
    total = sum(c.images for c in clinics)
    states = [c.model.state_dict() for c in clinics]
    merged = {}
    for name, value in global_model.state_dict().items():
        if value.is_floating_point():
            merged[name] = sum(s[name] * (c.images / total) for s, c in zip(states, clinics))
        else:
            merged[name] = value
    global_model.load_state_dict(merged)
