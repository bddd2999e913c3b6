"""Stain-normalise the tiles of a whole-slide image and assemble the haematoxylin mosaic."""
import sys
import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F

TILE = 1024
REFERENCE = ((0.65, 0.70, 0.29), (0.07, 0.99, 0.11))


@dataclass
class Slide:
    name: str
    rows: int
    cols: int

    @property
    def positions(self):
        return [(r, c) for r in range(self.rows) for c in range(self.cols)]

    def read(self, row, col):
        return torch.zeros(3, TILE, TILE, dtype=torch.uint8)


def optical_density(tile):
    return -torch.log((tile.half() + 1) / 256)


def tissue_map(od):
    return (od.mean(0) > 0.15).half()


def estimate_stains(tiles):
    """Macenko-style estimate from a sparse sample of all tiles of the slide."""
    pixels = torch.cat([od[:, ::32, ::32].reshape(3, -1) for od in tiles], dim=1).float()
    centred = pixels - pixels.mean(1, keepdim=True)
    covariance = centred @ centred.T / pixels.shape[1]
    reference = torch.tensor(REFERENCE, device=pixels.device)
    return F.normalize(reference @ (covariance + torch.eye(3, device=pixels.device)), dim=1)


def load_tiles(slide, device):
    tiles, maps = [], []
    for row, col in slide.positions:
        od = optical_density(slide.read(row, col).to(device))
        tiles.append(od)
        maps.append(tissue_map(od))
    return tiles, maps


def haematoxylin(tissue, stains):
    weight = stains[0].sum() / stains.sum()
    return tissue.float() * weight


def assemble(slide, maps, stains):
    mosaic = torch.zeros(slide.rows * TILE, slide.cols * TILE, device=maps[0].device)
    for (row, col), tissue in zip(slide.positions, maps):
        top, left = row * TILE, col * TILE
        mosaic[top:top + TILE, left:left + TILE] = haematoxylin(tissue, stains)
    return mosaic


def process(slide, device):
    started = time.perf_counter()
    tiles, maps = load_tiles(slide, device)
    stains = estimate_stains(tiles)
    print(f"{slide.name}: {len(tiles)} tiles loaded", flush=True)
    del tiles
    if device.type == "cuda":
        torch.cuda.empty_cache()
    mosaic = assemble(slide, maps, stains)
    overview = F.avg_pool2d(mosaic[None, None], 32)[0, 0].cpu()
    print(f"{slide.name}: overview {tuple(overview.shape)} in {time.perf_counter() - started:.1f}s", flush=True)
    return overview


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    slides = [Slide("TCGA-A1", 8, 12), Slide("TCGA-A2", 20, 18), Slide("TCGA-A7", 12, 14)]
    overviews = [process(slide, device) for slide in slides]
    print("total overview pixels:", sum(o.numel() for o in overviews))


if __name__ == "__main__":
    main()
