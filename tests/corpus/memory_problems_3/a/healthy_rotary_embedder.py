"""Embeds documents of growing length with a rotary transformer."""
import torch
import torch.nn.functional as F
from torch import nn

from positions import RotaryTable, rotate


class Layer(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(
            F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v)
            .transpose(1, 2).reshape(batch, length, width)
        )
        return x + self.mlp(x)


class Embedder(nn.Module):
    def __init__(self, device, vocabulary=30000, width=512, heads=4, layers=6, longest=16384):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, device=device)
        self.layers = nn.ModuleList(Layer(width, heads).to(device) for _ in range(layers))
        self.table = RotaryTable(width // heads, longest, device)

    def forward(self, tokens, layout):
        x = self.words(tokens)
        cos, sin = self.table.get(tokens.shape[1], layout)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return F.normalize(x.mean(dim=1), dim=-1)


def documents():
    for round_number in range(30):
        for layout in ("text", "code", "table"):
            yield layout, min(16384, 1024 + round_number // 4 * 3072)


@torch.inference_mode()
def main():
    device = torch.device("cuda")
    embedder = Embedder(device).eval()
    store = {}
    for number, (layout, length) in enumerate(documents()):
        tokens = torch.randint(0, 30000, (1, length)).to(device)
        store.setdefault(layout, []).append(embedder(tokens, layout).cpu())
        if number % 9 == 0:
            print(f"{number}: {layout} of {length} tokens, {torch.cuda.memory_allocated() / 2**20:.1f} MiB")
    print({layout: len(vectors) for layout, vectors in store.items()})


if __name__ == "__main__":
    main()
