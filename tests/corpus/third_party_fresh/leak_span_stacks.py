"""Moderates images on a thread pool, with tracing: each thread has a stack of spans, a span has its attributes.

A span is popped at the end of the work; where the work returns early (duplicates) nobody pops it, and the threads live on.
"""

import concurrent.futures
import random
import sys
import threading
import time

import torch
from torch import nn

trace = threading.local()


class Span:
    def __init__(self, name, **attributes):
        self.name = name
        self.attributes = attributes
        self.begun = time.monotonic()


def begin_span(name, **attributes):
    if not hasattr(trace, "stack"):
        trace.stack = []
    trace.stack.append(Span(name, **attributes))  # LEAK


def end_span():
    span = trace.stack.pop()
    return time.monotonic() - span.begun


class Moderator:
    def __init__(self, device):
        self.device = device
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten()).to(device)
        self.verdict = nn.Linear(8 * 11 * 11, 3).to(device)
        self.known = set()
        self.lock = threading.Lock()

    def fingerprint(self, image):
        small = nn.functional.adaptive_avg_pool2d(image, 4).mean(dim=0).flatten()
        return tuple((small > small.mean()).tolist())

    @torch.no_grad()
    def moderate(self, image):
        image = image.to(self.device, torch.float32).div(255)  # LEAK
        begin_span("moderate", image=image)  # LEAK
        mark = self.fingerprint(image)
        with self.lock:
            duplicate = mark in self.known
            self.known.add(mark)
        if duplicate:
            return "duplicate"
        label = self.verdict(self.net(image.unsqueeze(0))).argmax().item()
        end_span()
        return ("fine", "adult", "violent")[label]


def main():
    device = sys.argv[1]
    torch.manual_seed(19)
    torch.set_num_threads(1)
    rng = random.Random(19)
    moderator = Moderator(device)
    popular = torch.randint(0, 256, (40, 3, 48, 48), dtype=torch.uint8)
    counts = {}
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for _ in range(500):
            images = []
            for _ in range(5):
                if rng.random() < 0.25:
                    images.append(popular[rng.randrange(40)])
                else:
                    images.append(torch.randint(0, 256, (3, 48, 48), dtype=torch.uint8))
            for verdict in pool.map(moderator.moderate, images):  # LEAK
                counts[verdict] = counts.get(verdict, 0) + 1
    print(f"{sum(counts.values())} images, {counts.get('duplicate', 0)} duplicates")


if __name__ == "__main__":
    main()
