"""Detect whale calls in hydrophone recordings with a CRNN on log-mel spectrograms."""
import math
import sys

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

RATE = 16000
N_FFT = 1024
HOP = 320
N_MELS = 96


def read_deployment(recordings=72, seconds=60, seed=5):
    """One minute of sound for each hour of the deployment, and the annotated calls."""
    rng = np.random.default_rng(seed)
    tick = rng.integers(-3000, 3000, 4096, dtype=np.int16)
    sound = np.tile(tick, (recordings, math.ceil(seconds * RATE / 4096)))[:, : seconds * RATE]
    calls = rng.random((recordings, seconds * RATE // HOP + 1)) < 0.03
    return sound, calls


def mel_filters(device):
    def to_mel(f):
        return 2595 * math.log10(1 + f / 700)
    mels = torch.linspace(to_mel(30), to_mel(RATE / 2), N_MELS + 2)
    hz = 700 * (10 ** (mels / 2595) - 1)
    freqs = torch.linspace(0, RATE / 2, N_FFT // 2 + 1)
    rising = (freqs[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
    falling = (hz[2:, None] - freqs[None]) / (hz[2:] - hz[1:-1])[:, None]
    return torch.minimum(rising, falling).clamp(min=0).to(device)


class CallNet(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        chans = [1, width, width, 2 * width, 2 * width]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(chans, chans[1:]))
        self.norms = nn.ModuleList(nn.GroupNorm(8, c) for c in chans[1:])
        self.rnn = nn.Linear(2 * width * (N_MELS // 16), 128)
        self.head = nn.Linear(128, 1)

    def forward(self, x):
        x = x[:, None]
        for conv, norm in zip(self.convs, self.norms):
            x = F.max_pool2d(F.relu(norm(conv(x))), (2, 1))
        x = x.flatten(1, 2).transpose(1, 2)
        return self.head(torch.tanh(self.rnn(x))).squeeze(-1)


def batches(features, labels, size, gen):
    order = torch.randperm(len(features), generator=gen)
    for index in order.split(size):
        index = index.to(features.device)
        yield features[index], labels[index]


def train(model, features, labels, epochs=3, size=12):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        losses = []
        for x, y in batches(features, labels, size, gen):
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch}  loss {np.mean(losses):.4f}", flush=True)


def main(device):
    torch.manual_seed(0)
    sound, calls = read_deployment()

    wave = torch.from_numpy(sound).to(device).float() / 32768
    wave = wave - wave.mean(dim=1, keepdim=True)
    window = torch.hann_window(N_FFT, device=device)
    spectrum = torch.stft(wave, N_FFT, HOP, window=window, return_complex=True)
    power = spectrum.abs() ** 2
    floor = power.median(dim=2, keepdim=True).values
    whitened = power / (floor + 1e-10)
    mel = mel_filters(device) @ whitened
    features = torch.log(mel + 1e-6)
    features = (features - features.mean()) / features.std()
    labels = torch.from_numpy(calls).to(device).float()
    print(f"{features.shape[0]} recordings, {features.shape[2]} frames each", flush=True)

    model = CallNet().to(device)
    train(model, features, labels)
    torch.save(model.state_dict(), "/tmp/callnet.pt")


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
