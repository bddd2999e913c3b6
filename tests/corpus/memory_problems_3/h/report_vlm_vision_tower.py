"""Vision tower of a document VLM, served at native resolution.

Pages keep their own size (no resizing), several pages of one request are
packed into one sequence, and attention is restricted to the page a patch
belongs to.

    python report_vlm_vision_tower.py cuda
"""
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

PATCH = 14
DIM = 384
HEADS = 6


class VisionAttention(nn.Module):
    _mask_cache = {}

    def __init__(self, dim=DIM, heads=HEADS):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def page_mask(self, cu_seqlens, device, dtype):
        key = (cu_seqlens, device, dtype)
        if key not in self._mask_cache:
            total = cu_seqlens[-1]
            mask = torch.full((1, 1, total, total), torch.finfo(dtype).min, dtype=dtype, device=device)
            for start, stop in zip(cu_seqlens[:-1], cu_seqlens[1:]):
                mask[..., start:stop, start:stop] = 0
            self._mask_cache[key] = mask
        return self._mask_cache[key]

    def forward(self, x, cu_seqlens):
        length, dim = x.shape
        q, k, v = self.qkv(x).view(length, 3, self.heads, dim // self.heads).permute(1, 2, 0, 3)
        mask = self.page_mask(cu_seqlens, x.device, x.dtype)
        y = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)
        return self.proj(y[0].transpose(0, 1).reshape(length, dim))


class VisionBlock(nn.Module):
    def __init__(self, dim=DIM):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = VisionAttention(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, cu_seqlens):
        x = x + self.attn(self.norm1(x), cu_seqlens)
        return x + self.mlp(self.norm2(x))


class VisionTower(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        self.patch = nn.Linear(3 * PATCH * PATCH, DIM)
        self.blocks = nn.ModuleList(VisionBlock() for _ in range(depth))
        self.merger = nn.Linear(4 * DIM, 1024)

    def forward(self, patches, cu_seqlens):
        x = self.patch(patches)
        for block in self.blocks:
            x = block(x, cu_seqlens)
        return self.merger(x.reshape(-1, 4 * DIM))


def to_patches(page):
    channels, height, width = page.shape
    page = page.view(channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return page.permute(1, 3, 0, 2, 4).reshape(-1, channels * PATCH * PATCH)


class Server:
    def __init__(self, device, dtype=torch.bfloat16):
        self.device, self.dtype = device, dtype
        self.tower = VisionTower().to(device, dtype).eval()

    @torch.inference_mode()
    def embed(self, pages):
        patches = [to_patches(page) for page in pages]
        bounds = [0]
        for part in patches:
            bounds.append(bounds[-1] + part.shape[0])
        packed = torch.cat(patches).to(self.device, self.dtype)
        tokens = self.tower(packed, tuple(bounds))
        return tokens.float().cpu()


def requests(count, seed=21):
    rng = random.Random(seed)
    for _ in range(count):
        pages = []
        for _ in range(rng.choice((1, 1, 2))):
            rows, cols = 2 * rng.randint(16, 27), 2 * rng.randint(12, 20)
            pages.append(torch.rand(3, rows * PATCH, cols * PATCH))
        yield pages


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    server = Server(device)
    produced = 0
    for number, pages in enumerate(requests(48)):
        tokens = server.embed(pages)
        produced += tokens.shape[0]
        if number % 8 == 0:
            print(f"request {number:3d}: {len(pages)} page(s), {tokens.shape[0]} tokens")
    print(f"{produced} visual tokens in total")


if __name__ == "__main__":
    main()
