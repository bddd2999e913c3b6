"""Copies batches to the device on a side stream while the model works on the previous one: two buffers, used in turn.

On the CPU there are no streams, and the copies are made in place.
"""

import contextlib
import sys

import torch
from torch import nn


class DoubleBuffer:
    def __init__(self, shape, device):
        self.device = torch.device(device)
        self.buffers = [torch.empty(shape, device=device) for _ in range(2)]
        self.stream = torch.cuda.Stream() if self.device.type == "cuda" else None
        self.ready = [None, None]

    def on_side_stream(self):
        return torch.cuda.stream(self.stream) if self.stream else contextlib.nullcontext()

    def start_copy(self, slot, host):
        with self.on_side_stream():
            if self.stream:
                self.stream.wait_stream(torch.cuda.current_stream())
            self.buffers[slot].copy_(host, non_blocking=True)
            # Normalised copies are made on the side stream too, and freed by the consumer.
            batch = (self.buffers[slot] - 0.5) * 2.0
            event = self.stream.record_event() if self.stream else None
        self.ready[slot] = (batch, event)

    def take(self, slot):
        batch, event = self.ready[slot]
        self.ready[slot] = None
        if event is not None:
            torch.cuda.current_stream().wait_event(event)
            batch.record_stream(torch.cuda.current_stream())
        return batch


def batches(count, shape):
    for _ in range(count):
        yield torch.rand(shape)


def main():
    device = sys.argv[1]
    torch.manual_seed(91)
    torch.set_num_threads(1)
    shape = (16, 3, 20, 20)
    buffer = DoubleBuffer(shape, device)
    model = nn.Sequential(nn.Conv2d(3, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 2)).to(
        device
    )
    total = torch.zeros(2, device=device)
    source = batches(320, shape)
    buffer.start_copy(0, next(source))
    with torch.no_grad():
        for number, host in enumerate(source):
            buffer.start_copy((number + 1) % 2, host)
            total += model(buffer.take(number % 2)).mean(dim=0)
    print(f"{number + 1} batches, result of shape {tuple(total.shape)}")


if __name__ == "__main__":
    main()
