"""A decorator notes calls that exceed their budget of work, with the arguments and the result, for a later replay.

About one request in fifteen is noted; nobody ever replays them.
"""

import functools
import random
import sys

import torch
from torch import nn


class Replays:
    def __init__(self):
        self.calls = []

    def when_expensive(self, budget):
        def decorate(function):
            @functools.wraps(function)
            def wrapper(*arguments):
                result = function(*arguments)  # LEAK
                cost = sum(argument.numel() for argument in arguments if isinstance(argument, torch.Tensor))
                if cost > budget:
                    self.calls.append((function.__name__, arguments, result))  # LEAK
                return result

            return wrapper

        return decorate


replays = Replays()


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Conv2d(1, 8, 3, padding=1, stride=2)
        self.decode = nn.ConvTranspose2d(8, 4, 2, stride=2)

    def forward(self, scan):
        return self.decode(torch.relu(self.encode(scan)))


def load_scan(side, device):
    return torch.rand(1, 1, side, side, device=device)  # LEAK


@replays.when_expensive(budget=80 * 80)
def segment(model, scan):
    return model(scan).argmax(dim=1)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(30)
    torch.set_num_threads(1)
    rng = random.Random(30)
    model = Segmenter().to(device).eval()
    with torch.no_grad():
        for _ in range(450):
            side = 96 if rng.random() < 1 / 15 else rng.choice([48, 64, 80])
            scan = load_scan(side, device)  # LEAK
            segment(model, scan)  # LEAK
    print(f"{len(replays.calls)} calls to replay")


if __name__ == "__main__":
    main()
