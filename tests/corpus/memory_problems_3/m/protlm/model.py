import torch.nn as nn


class DilatedBlock(nn.Module):
    def __init__(self, width, dilation):
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.conv = nn.Conv1d(width, width, 5, padding=2 * dilation, dilation=dilation)
        self.act = nn.GELU()
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x):
        return x + self.mix(self.act(self.conv(self.norm(x))))


class StructureTagger(nn.Module):
    """Eight-state secondary structure from sequence, residual dilated convolutions."""

    def __init__(self, vocab=26, width=256, depth=8, states=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width, padding_idx=0)
        self.blocks = nn.ModuleList(DilatedBlock(width, 2 ** (i % 4)) for i in range(depth))
        self.head = nn.Linear(width, states)

    def forward(self, tokens):
        x = self.embed(tokens).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(x.transpose(1, 2))
