"""Recognises keywords in an audio stream, by generators: a sliding window of the last second is grown by torch.cat and trimmed by a copy."""

import random
import sys

import torch
from torch import nn

RATE = 4000


def microphone(chunks, rng, device):
    for _ in range(chunks):
        yield torch.randn(rng.randint(100, 400), device=device)


def windows(chunks, device):
    window = torch.zeros(0, device=device)
    for chunk in chunks:
        window = torch.cat([window, chunk])
        if len(window) > RATE:
            window = window[-RATE:].clone()
        yield window


def spectra(windows, device):
    shape = torch.hann_window(256, device=device)
    for window in windows:
        if len(window) >= 256:
            frames = window.unfold(0, 256, 128) * shape
            yield torch.fft.rfft(frames).abs().log1p()


def scores(spectra, model, smoothing=5):
    recent = []
    for spectrum in spectra:
        recent.append(model(spectrum).mean(dim=0))
        del recent[:-smoothing]
        yield torch.stack(recent).mean(dim=0)


@torch.no_grad()
def main():
    device = sys.argv[1]
    torch.manual_seed(193)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(129, 96), nn.ReLU(), nn.Linear(96, 12)).to(device)
    stream = microphone(2500, random.Random(193), device)
    count = sum(1 for _ in scores(spectra(windows(stream, device), device), model))
    print(f"{count} scores")


if __name__ == "__main__":
    main()
