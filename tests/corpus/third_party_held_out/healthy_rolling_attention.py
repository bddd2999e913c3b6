"""Streaming transcription with attention over the last 96 frames: keys and values are in a ring, written in place.

The transcripts are Python text; they are all kept.
"""

import random
import sys

import torch
from torch import nn


class RollingAttention(nn.Module):
    def __init__(self, width, window):
        super().__init__()
        self.width = width
        self.qkv = nn.Linear(width, 3 * width)
        self.register_buffer("keys", torch.zeros(window, width))
        self.register_buffer("values", torch.zeros(window, width))
        self.window = window
        self.position = 0

    def reset(self):
        self.keys.zero_()
        self.values.zero_()
        self.position = 0

    def forward(self, frame):
        query, key, value = self.qkv(frame).chunk(3)
        place = self.position % self.window
        self.keys[place] = key
        self.values[place] = value
        self.position += 1
        filled = min(self.position, self.window)
        weights = torch.softmax(self.keys[:filled] @ query / self.width**0.5, dim=0)
        return weights @ self.values[:filled]


class Transcriber:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.layers = nn.ModuleList(RollingAttention(64, 96) for _ in range(3)).to(device)
        self.words = []

    @torch.inference_mode()
    def feed(self, frame):
        for layer in self.layers:
            frame = frame + layer(frame)
        if self.rng.random() < 0.2:
            self.words.append(f"word-{self.rng.randrange(1000)}")

    def next_speaker(self):
        for layer in self.layers:
            layer.reset()


def main():
    torch.manual_seed(85)
    torch.set_num_threads(1)
    rng = random.Random(85)
    transcriber = Transcriber(sys.argv[1], rng)
    for _ in range(900):
        transcriber.feed(torch.randn(64, device=sys.argv[1]))
        if rng.random() < 0.004:
            transcriber.next_speaker()
    print(f"{len(transcriber.words)} words")


if __name__ == "__main__":
    main()
