"""Measures the latency of ever wider networks: each is built on the CPU, moved to the device, loaded with weights, run a few times and dropped."""

import io
import sys
import time

import torch
from torch import nn


def build(width, depth):
    layers = [nn.Linear(32, width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 8))


def stored_weights(width, depth):
    file = io.BytesIO()
    torch.save(build(width, depth).state_dict(), file)
    file.seek(0)
    return file


def latency(model, device, runs=6):
    inputs = torch.randn(16, 32, device=device)
    start = time.perf_counter()
    with torch.inference_mode():
        for _ in range(runs):
            model(inputs)
    return (time.perf_counter() - start) / runs


def main():
    device = sys.argv[1]
    torch.manual_seed(131)
    torch.set_num_threads(1)
    results = {}
    for width in range(16, 176, 4):
        for depth in (1, 2, 4):
            model = build(width, depth).to(device)
            model.load_state_dict(torch.load(stored_weights(width, depth), map_location=device))
            results[width, depth] = latency(model, device)
    print(f"{len(results)} architectures measured")


if __name__ == "__main__":
    main()
