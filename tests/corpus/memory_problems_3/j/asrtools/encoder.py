import torch
import torch.nn as nn


class ConvBlock(nn.Module):
    def __init__(self, dim, kernel=31):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pointwise_in = nn.Linear(dim, 2 * dim)
        self.depthwise = nn.Conv1d(dim, dim, kernel, padding=kernel // 2, groups=dim)
        self.pointwise_out = nn.Linear(dim, dim)

    def forward(self, x):
        h = nn.functional.glu(self.pointwise_in(self.norm(x)), dim=-1)
        h = self.depthwise(h.transpose(1, 2)).transpose(1, 2)
        return x + self.pointwise_out(nn.functional.silu(h))


class AcousticModel(nn.Module):
    """80 mel bins in, log-probabilities of word pieces out, at half the frame rate."""

    def __init__(self, n_pieces, dim=384, depth=6):
        super().__init__()
        self.subsample = nn.Conv1d(80, dim, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(*(ConvBlock(dim) for _ in range(depth)))
        self.out = nn.Linear(dim, n_pieces)

    def forward(self, mel):
        h = self.subsample(mel.transpose(1, 2)).transpose(1, 2)
        return self.out(self.blocks(h)).log_softmax(dim=-1)
