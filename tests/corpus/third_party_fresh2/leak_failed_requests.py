"""An image service collects the errors of the requests it refuses for a report at the end of the day; the errors hold their tracebacks."""

import random
import sys
from dataclasses import dataclass, field

import torch
from torch import nn


class Refused(Exception):
    pass


@dataclass
class Request:
    number: int
    side: int
    licence: bool


@dataclass
class Report:
    served: int = 0
    errors: list = field(default_factory=list)


def build(device):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(128, 20),
    ).to(device)


def check(request, pixels):
    if not request.licence:
        raise Refused(f"request {request.number} has no licence")
    return pixels


def predict(model, request, device):
    pixels = torch.rand(1, 3, request.side, request.side, device=device)  # LEAK
    centred = (pixels - 0.5) / 0.25  # LEAK
    return model(check(request, centred))


@torch.no_grad()
def serve(model, requests, device):
    report = Report()
    for request in requests:
        try:
            predict(model, request, device)
            report.served += 1
        except Refused as error:
            report.errors.append(error)  # LEAK
    return report


def requests(count, rng):
    for number in range(count):
        yield Request(number, rng.choice([48, 64, 80]), rng.random() > 0.15)


def main():
    device = sys.argv[1]
    torch.manual_seed(23)
    torch.set_num_threads(1)
    report = serve(build(device), requests(1500, random.Random(23)), device)
    print(f"{report.served} served, {len(report.errors)} refused")


if __name__ == "__main__":
    main()
