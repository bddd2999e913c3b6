"""Exports embeddings of a whole collection in one pass; they are collected, joined and written out when the pass is over."""

import os
import sys
import tempfile

import torch
from torch import nn


class PatchEncoder(nn.Module):
    def __init__(self, width=64, patch=8):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.block = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.out = nn.Linear(width, 256)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return nn.functional.normalize(self.out(self.block(x).mean(dim=1)), dim=1)


class Collection:
    def __init__(self, size, seed):
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self):
        for start in range(0, self.size, 16):
            count = min(16, self.size - start)
            pixels = torch.randint(0, 256, (count, 3, 40, 40), dtype=torch.uint8, generator=self.generator)
            yield list(range(start, start + count)), pixels


@torch.inference_mode()
def embed_all(model, collection, device):
    names, vectors = [], []
    for identifiers, pixels in collection:
        vectors.append(model(pixels.to(device).float() / 255))
        names.extend(identifiers)
    return names, torch.cat(vectors)


def main():
    device = sys.argv[1]
    torch.manual_seed(40)
    torch.set_num_threads(1)
    model = PatchEncoder().to(device).eval()
    names, vectors = embed_all(model, Collection(11_200, seed=41), device)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "embeddings.pt")
        torch.save({"names": names, "vectors": vectors.half().cpu()}, path)
        print(f"{len(names)} embeddings, {os.path.getsize(path) >> 10} KiB")


if __name__ == "__main__":
    main()
