"""Leave-one-region-out evaluation of a land cover model."""
import gc
import sys

import torch
from torch.nn import functional as F

from landcover.folds import Tiles
from landcover.model import TileTransformer

BATCH = 8


def train(model, tiles, index, device):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05)
    model.train()
    for images, labels in tiles.batches(index, BATCH, crop=96):
        logits = model(images.to(device))
        loss = F.cross_entropy(logits, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def evaluate(model, tiles, index, device, classes=9):
    model.eval()
    hits = torch.zeros((), device=device)
    pixels = 0
    for images, labels in tiles.batches(index, BATCH):
        labels = labels.to(device)
        hits += (model(images.to(device)).argmax(1) == labels).sum()
        pixels += labels.numel()
    return hits.item() / pixels


def run_fold(tiles, region, device):
    torch.manual_seed(region)
    model = TileTransformer().to(device)
    train_index, test_index = tiles.split(region)
    loss = train(model, tiles, train_index, device)
    accuracy = evaluate(model, tiles, test_index, device)
    size = sum(p.numel() for p in model.parameters()) / 1e6
    return {"region": region, "loss": loss, "accuracy": accuracy, "params": size}


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    tiles = Tiles()
    results = []
    for region in range(tiles.regions):
        results.append(run_fold(tiles, region, device))
        gc.collect()
        torch.cuda.empty_cache()
        used = torch.cuda.memory_allocated(device) / 2**20
        print(f"region {region}: {results[-1]['params']:.1f} M parameters, {used:.0f} MiB in use", flush=True)
    mean = sum(r["accuracy"] for r in results) / len(results)
    print(f"mean accuracy over {len(results)} regions: {mean:.3f}")


if __name__ == "__main__":
    main()
