"""Random search over recipes for a weld inspection network; the board holds the leading trials."""
import heapq
import itertools
import random

import torch
from torch import nn


class WeldNet(nn.Module):
    def __init__(self, width, depth, drop):
        super().__init__()
        layers = [nn.Conv2d(1, width, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(depth):
            layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(drop))
        self.judge = nn.Sequential(nn.Linear(16 * width, 1024), nn.ReLU(), nn.Linear(1024, 2))

    def forward(self, x):
        return self.judge(self.features(x))


class Board:
    """The places of the board go to the trials with the best scores."""

    def __init__(self, places):
        self.places = places
        self.heap = []
        self.counter = itertools.count()

    def enter(self, score, recipe, net):
        entry = (score, next(self.counter), recipe, net)
        if len(self.heap) < self.places:
            heapq.heappush(self.heap, entry)
        else:
            heapq.heappushpop(self.heap, entry)

    def leaders(self):
        return [(score, recipe, net) for score, _, recipe, net in sorted(self.heap, key=lambda e: -e[0])]


def sample_recipe(rng):
    return {"width": rng.choice([96, 128, 192]), "depth": rng.randint(2, 5), "drop": rng.choice([0.0, 0.2, 0.4]),
            "lr": 10 ** rng.uniform(-4, -2), "optimizer": rng.choice(["sgd", "adam"])}


def make_optimizer(net, recipe):
    if recipe["optimizer"] == "sgd":
        return torch.optim.SGD(net.parameters(), lr=recipe["lr"], momentum=0.9)
    return torch.optim.Adam(net.parameters(), lr=recipe["lr"])


def run_trial(recipe, rng, device, steps=15, batch=32):
    net = WeldNet(recipe["width"], recipe["depth"], recipe["drop"]).to(device)
    optimizer = make_optimizer(net, recipe)
    for _ in range(steps):
        plates = torch.full((batch, 1, 96, 96), rng.random()).to(device)
        labels = torch.tensor([rng.randrange(2) for _ in range(batch)]).to(device)
        loss = nn.functional.cross_entropy(net(plates), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for parameter in net.parameters():
        parameter.grad = None
    return net, rng.uniform(0.5, 1.0) - 0.01 * loss.item()


@torch.inference_mode()
def committee(board, rng, device):
    plates = torch.full((64, 1, 96, 96), rng.random()).to(device)
    return torch.stack([net.eval()(plates).softmax(dim=1) for _, _, net in board.leaders()]).mean(dim=0).cpu()


torch.manual_seed(0)
rng = random.Random(31)
device = torch.device("cuda")
board = Board(places=8)
for trial in range(40):
    recipe = sample_recipe(rng)
    net, score = run_trial(recipe, rng, device)
    board.enter(score, recipe, net)
    del net
    if trial % 5 == 4:
        print(f"trial {trial + 1}: best {board.leaders()[0][0]:.3f}, last place {board.leaders()[-1][0]:.3f}, "
              f"{torch.cuda.memory_allocated() >> 20} MiB", flush=True)
print("committee", tuple(committee(board, rng, device).shape))
