"""Single and pair representation of a chain, and the coordinates read from them."""
import torch
from torch import nn

RESIDUES = "ACDEFGHIKLMNPQRSTVWY"


class ChainError(ValueError):
    """The chain cannot be modelled."""


class PairBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, pair):
        x = self.norm(pair)
        a, b = self.left(x).permute(2, 0, 1), self.right(x).permute(2, 0, 1)
        mixed = torch.matmul(a, b.transpose(-1, -2)).permute(1, 2, 0)
        return pair + torch.sigmoid(self.gate(x)) * self.out(mixed)


class Trunk(nn.Module):
    def __init__(self, width=96, depth=3, bins=64):
        super().__init__()
        self.residue = nn.Embedding(len(RESIDUES), width)
        self.offset = nn.Embedding(65, width)
        self.blocks = nn.ModuleList(PairBlock(width) for _ in range(depth))
        self.distogram = nn.Linear(width, bins)
        self.coords = nn.Linear(width, 3)

    def forward(self, tokens, bonds):
        single = self.residue(tokens)
        place = torch.arange(len(tokens), device=tokens.device)
        offset = (place[:, None] - place[None, :]).clamp(-32, 32) + 32
        pair = single[:, None] + single[None, :] + self.offset(offset)
        for block in self.blocks:
            pair = block(pair)
        return self.read_out(pair, bonds)

    def read_out(self, pair, bonds):
        logits = self.distogram(pair)
        coords = self.coords(pair.mean(1))
        for first, second in bonds:
            if not 0 <= first < second < len(coords):
                raise ChainError(f"disulfide bond {first}-{second} lies outside the chain")
            coords = coords.index_add(0, torch.tensor([second], device=coords.device), coords[first : first + 1] * 0.1)
        return {"coords": coords.cpu(), "confidence": logits.softmax(-1).amax(-1).mean().item()}
