"""A text server that streams tokens from generators; readers usually stop before the end.

Streams are registered when opened and removed when they run dry, so those left half-read stay, with their state.
"""

import random
import sys

import torch
from torch import nn


class StreamServer:
    def __init__(self, device, width=128):
        self.device = device
        self.width = width
        self.cell = nn.LSTMCell(width, width).to(device)
        self.open_streams = {}

    def _tokens(self, stream_id, count):
        context = torch.randn(64, self.width, device=self.device)  # LEAK
        hidden = torch.zeros(1, self.width, device=self.device)
        memory = torch.zeros(1, self.width, device=self.device)
        for _ in range(count):
            with torch.no_grad():
                weights = torch.softmax(hidden @ context.T, dim=-1)
                hidden, memory = self.cell(weights @ context, (hidden, memory))
            yield hidden.sum()
        del self.open_streams[stream_id]

    def open(self, stream_id, count):
        stream = self._tokens(stream_id, count)
        self.open_streams[stream_id] = stream  # LEAK
        return stream


def read(stream, limit):
    total = 0
    for token in stream:  # LEAK
        total += 1
        del token
        if total == limit:
            break
    return total


def main():
    torch.manual_seed(16)
    torch.set_num_threads(1)
    rng = random.Random(16)
    server = StreamServer(sys.argv[1])
    tokens = 0
    for stream_id in range(260):
        count = rng.randint(5, 12)
        patience = rng.randint(3, 14)
        tokens += read(server.open(stream_id, count), patience)
    print(f"{tokens} tokens read")


if __name__ == "__main__":
    main()
