"""Build a retrieval gallery from pathology slides and query it.

Each slide is cut into tiles; a ViT encodes the tiles and the class token of
every tile goes into the gallery, which stays on the device because the
queries that follow are answered there.

    python report_tile_gallery.py cuda
"""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

TILE, PATCH, DIM = 112, 8, 384


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 3 * dim), nn.GELU(), nn.Linear(3 * dim, dim))

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, dim)
        x = x + self.proj(y)
        return x + self.mlp(self.norm2(x))


class TileEncoder(nn.Module):
    def __init__(self, depth=4, heads=6):
        super().__init__()
        patches = (TILE // PATCH) ** 2
        self.patch = nn.Conv2d(3, DIM, PATCH, PATCH)
        self.cls = nn.Parameter(torch.zeros(1, 1, DIM))
        self.pos = nn.Parameter(torch.randn(1, patches + 1, DIM) * 0.02)
        self.blocks = nn.ModuleList(Block(DIM, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(DIM)

    def forward_tokens(self, tiles):
        x = self.patch(tiles).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.pos
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def forward(self, tiles):
        return self.forward_tokens(tiles)[:, 0]


class Gallery:
    def __init__(self):
        self.parts = []
        self.slide_ids = []

    def add(self, slide_id, embeddings):
        self.parts.append(embeddings)
        self.slide_ids += [slide_id] * len(embeddings)

    def matrix(self):
        return F.normalize(torch.cat(self.parts), dim=-1)

    def search(self, query, k=10):
        scores = F.normalize(query, dim=-1) @ self.matrix().T
        return scores.topk(k, dim=-1)


def slide_tiles(slide_id, batches, batch_size):
    generator = torch.Generator().manual_seed(slide_id)
    stain = torch.rand(3, 1, 1, generator=generator)
    for _ in range(batches):
        tiles = torch.rand(batch_size, 3, TILE, TILE, generator=generator)
        yield (tiles * 0.5 + stain * 0.5).sub_(0.5).div_(0.25)


@torch.inference_mode()
def index_slides(encoder, gallery, slides, device):
    for slide_id in slides:
        for tiles in slide_tiles(slide_id, batches=6, batch_size=48):
            gallery.add(slide_id, encoder(tiles.to(device)))
        print(f"slide {slide_id:2d}: gallery holds {len(gallery.slide_ids)} tiles")


@torch.inference_mode()
def answer(encoder, gallery, slide_id, device):
    tiles = next(slide_tiles(slide_id, batches=1, batch_size=8))
    scores, _ = gallery.search(encoder(tiles.to(device)))
    return scores.mean().item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    encoder = TileEncoder().to(device).eval()
    gallery = Gallery()
    index_slides(encoder, gallery, range(8), device)
    for slide_id in (101, 102, 103):
        print(f"query slide {slide_id}: mean top-10 score {answer(encoder, gallery, slide_id, device):.3f}")


if __name__ == "__main__":
    main()
