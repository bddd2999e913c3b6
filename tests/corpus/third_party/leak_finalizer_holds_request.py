"""A denoising service that returns working buffers to a count of free slots when a request object dies.

The finalizer is given the request itself as an argument, so the request never dies.
"""

import sys
import weakref

import torch
from torch import nn


class Slots:
    def __init__(self, total):
        self.total = total
        self.used = 0

    def release(self, request):
        self.used -= request.slots


class Request:
    def __init__(self, number, signal):
        self.number = number
        self.slots = 1
        self.signal = signal
        self.result = None


class Denoiser:
    def __init__(self, device):
        self.device = device
        self.filter = nn.Conv1d(1, 1, 9, padding=4).to(device)
        self.slots = Slots(100_000)

    def accept(self, number):
        request = Request(number, torch.randn(1, 1, 4000, device=self.device))  # LEAK
        self.slots.used += request.slots
        weakref.finalize(request, self.slots.release, request)  # LEAK
        return request

    @torch.no_grad()
    def process(self, request):
        smooth = self.filter(request.signal)
        request.result = float(smooth.abs().mean())


def main():
    torch.manual_seed(23)
    torch.set_num_threads(1)
    service = Denoiser(sys.argv[1])
    for number in range(500):
        request = service.accept(number)  # LEAK
        service.process(request)
        del request
    print("slots in use:", service.slots.used)


if __name__ == "__main__":
    main()
