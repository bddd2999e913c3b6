"""Streams melodies note by note from generators; a listener takes as many notes as he likes.

The stream is in the table of active streams until its generator runs to its end, which it does not if the listener stops early.
"""

import random
import sys

import torch
from torch import nn


class Composer(nn.Module):
    def __init__(self, notes=60, width=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(notes, width)
        self.rnn = nn.LSTM(width, width, layers)
        self.out = nn.Linear(width, notes)

    def begin(self, voices, device):
        shape = (self.rnn.num_layers, voices, self.rnn.hidden_size)
        return torch.zeros(shape, device=device), torch.zeros(shape, device=device)

    def forward(self, note, state):
        h, state = self.rnn(self.embed(note).unsqueeze(0), state)  # LEAK
        return self.out(h[0]), state  # LEAK


class StreamingService:
    def __init__(self, device):
        self.device = device
        self.model = Composer().to(device).eval()
        self.active = {}
        self.opened = 0

    def _notes(self, number, voices, bars):
        state = self.model.begin(voices, self.device)
        played = torch.zeros(4 * bars, voices, dtype=torch.long, device=self.device)  # LEAK
        note = torch.full((voices,), number % 60, device=self.device)
        for beat in range(4 * bars):
            with torch.no_grad():
                logits, state = self.model(note, state)  # LEAK
                note = (logits - 0.5 * torch.randn_like(logits)).argmax(dim=1)  # LEAK
            played[beat] = note
            yield note.tolist()
        del self.active[number]

    def open(self, voices, bars):
        self.opened += 1
        stream = self._notes(self.opened, voices, bars)
        self.active[self.opened] = stream  # LEAK
        return stream


def main():
    device = sys.argv[1]
    torch.manual_seed(18)
    torch.set_num_threads(1)
    rng = random.Random(18)
    service = StreamingService(device)
    heard = 0
    for _ in range(420):
        bars = rng.randint(2, 5)
        patience = rng.randint(4, 60)
        for beat, chord in enumerate(service.open(voices=rng.randint(4, 16), bars=bars)):  # LEAK
            heard += len(chord)
            if beat >= patience:
                break
    print(f"{heard} notes heard, {len(service.active)} streams active")


if __name__ == "__main__":
    main()
