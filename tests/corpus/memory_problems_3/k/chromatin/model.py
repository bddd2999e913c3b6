"""Dilated convolutional profile model over one-hot DNA."""
import torch.nn as nn


class DilatedBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.act = nn.ReLU()

    def forward(self, x):
        return x + self.act(self.conv(x))


class ProfileNet(nn.Module):
    def __init__(self, width=64, depth=6):
        super().__init__()
        self.stem = nn.Conv1d(4, width, 21, padding=10)
        self.stem_act = nn.ReLU()
        self.blocks = nn.Sequential(*[DilatedBlock(width, 2 ** i) for i in range(1, depth + 1)])
        self.profile = nn.Conv1d(width, 1, 75, padding=37)
        self.counts = nn.Linear(width, 1)

    def forward(self, x):
        x = self.blocks(self.stem_act(self.stem(x)))
        return self.profile(x).squeeze(1), self.counts(x.mean(-1)).squeeze(-1)
