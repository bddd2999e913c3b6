"""A classification service that retries failed requests twice and shows the last fifteen errors, inputs included."""

import random
import sys
from collections import deque

import torch
from torch import nn


class BackendError(RuntimeError):
    def __init__(self, message, inputs):
        super().__init__(message)
        self.inputs = inputs


class Service:
    def __init__(self, device, seed):
        self.model = nn.Sequential(nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 20)).to(device)
        self.rng = random.Random(seed)
        self.errors = deque(maxlen=15)
        self.retries = deque()
        self.given_up = 0

    @torch.no_grad()
    def classify(self, inputs):
        if self.rng.random() < 0.12:
            raise BackendError("backend not ready", inputs)
        return self.model(inputs).argmax(dim=1)

    def handle(self, inputs, attempt=0):
        try:
            return self.classify(inputs)
        except BackendError as error:
            self.errors.append(error)
            if attempt < 2:
                self.retries.append((inputs, attempt + 1))
            else:
                self.given_up += 1
            return None

    def work_off(self):
        for _ in range(len(self.retries)):
            self.handle(*self.retries.popleft())


def main():
    device = sys.argv[1]
    torch.manual_seed(11)
    torch.set_num_threads(1)
    service = Service(device, 11)
    for request in range(800):
        service.handle(torch.randn(12, 300, device=device))
        if request % 4 == 0:
            service.work_off()
    print(len(service.errors), "errors kept,", service.given_up, "requests given up")


if __name__ == "__main__":
    main()
