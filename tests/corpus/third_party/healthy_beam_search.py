"""Translates sentences with beam search; the beams of a sentence grow with its length and go when it is done."""

import random
import sys

import torch
from torch import nn

import pytorch_alloctrace as alloctrace


class Decoder(nn.Module):
    def __init__(self, vocabulary=400, width=64):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, token, hidden):
        hidden = self.cell(self.embed(token), hidden)
        return self.out(hidden).log_softmax(dim=-1), hidden


@torch.inference_mode()
def translate(decoder, length, beams, device):
    hidden = torch.randn(beams, 64, device=device)
    token = torch.zeros(beams, dtype=torch.long, device=device)
    score = torch.zeros(beams, device=device)
    history = []
    for _ in range(length):
        log_probs, hidden = decoder(token, hidden)
        best, token = log_probs.max(dim=-1)
        score = score + best
        history.append((token, hidden, log_probs))
    return torch.stack([entry[0] for entry in history], dim=1), score


def main():
    device = sys.argv[1]
    torch.manual_seed(14)
    torch.set_num_threads(1)
    rng = random.Random(14)
    decoder = Decoder().to(device).eval()
    lengths = []
    for _sentence in range(90):
        tokens, _ = translate(decoder, rng.randint(3, 25), beams=4, device=device)
        lengths.append(tokens.shape[1])
        alloctrace.step()
    print("mean length:", sum(lengths) / len(lengths))


if __name__ == "__main__":
    main()
