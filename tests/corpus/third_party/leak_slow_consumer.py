"""A pipeline of two stages joined by a queue: frames are decoded and then described.

Decoding makes three frames a tick and the describer takes two, and the queue has no limit.
"""

import queue
import sys

import torch
from torch import nn


class Decoder:
    def __init__(self, device, out):
        self.device = device
        self.out = out
        self.basis = torch.randn(64, 3 * 128 * 128, device=device)

    def run_once(self):
        coefficients = torch.randn(64, device=self.device)
        frame = torch.sigmoid(coefficients @ self.basis)  # LEAK
        self.out.put(frame)  # LEAK


class Describer:
    def __init__(self, device, source):
        self.source = source
        self.model = nn.Sequential(nn.Linear(3 * 128 * 128, 64), nn.ReLU(), nn.Linear(64, 16)).to(device)

    @torch.no_grad()
    def run_once(self):
        try:
            frame = self.source.get_nowait()
        except queue.Empty:
            return None
        return self.model(frame)


def main():
    device = sys.argv[1]
    torch.manual_seed(31)
    torch.set_num_threads(1)
    frames = queue.Queue()
    decoder = Decoder(device, frames)
    describer = Describer(device, frames)
    described = 0
    for _tick in range(250):
        for _ in range(3):
            decoder.run_once()  # LEAK
        for _ in range(2):
            if describer.run_once() is not None:
                described += 1
    print(f"{described} frames described, {frames.qsize()} waiting")


if __name__ == "__main__":
    main()
