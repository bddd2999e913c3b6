"""Fine-tunes an audio encoder and follows the drift of its output on a probe clip as a running average, which keeps the graph of each probe."""

import sys

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv1d(1, 8, 9, stride=2)
        self.second = nn.Conv1d(8, 16, 9, stride=2)

    def forward(self, audio):
        hidden = torch.tanh(self.first(audio))  # LEAK
        return torch.tanh(self.second(hidden)).mean(dim=2)  # LEAK


class Drift:
    def __init__(self, encoder, clip):
        self.encoder = encoder
        self.clip = clip
        self.value = 0.0
        with torch.no_grad():
            self.origin = encoder(clip)

    def update(self):
        distance = (self.encoder(self.clip) - self.origin).square().mean()  # LEAK
        self.value = 0.98 * self.value + 0.02 * distance  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(31)
    torch.set_num_threads(1)
    encoder = Encoder().to(device)
    head = nn.Linear(16, 5).to(device)
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-3)
    drift = Drift(encoder, torch.randn(2, 1, 1200, device=device))
    for _ in range(240):
        audio = torch.randn(6, 1, 800, device=device)
        labels = torch.randint(0, 5, (6,), device=device)
        loss = nn.functional.cross_entropy(head(encoder(audio)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        drift.update()
    print(f"drift {drift.value.item():.4f}")


if __name__ == "__main__":
    main()
