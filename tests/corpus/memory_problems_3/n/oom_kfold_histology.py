import gc
import sys
import time

import torch

from histology.folds import FoldStore, TileSet

CLASSES = ["adipose", "background", "debris", "lymphocytes", "mucus", "muscle", "mucosa", "stroma", "tumour"]
MEAN = (0.70, 0.54, 0.69)
STD = (0.13, 0.17, 0.12)


def normalise(tiles, device):
    tiles = tiles.to(device).float().div_(255)
    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    std = torch.tensor(STD, device=device).view(1, 3, 1, 1)
    return (tiles - mean) / std


def views(tiles):
    yield tiles
    yield tiles.flip(-1)
    yield tiles.flip(-2)


def predict_tiles(model, tiles):
    votes = None
    for view in views(tiles):
        probs = model(view).float().softmax(-1)
        votes = probs if votes is None else votes + probs
    return votes / 3


def predict_fold(model, tileset, device, batch_size):
    scores = torch.zeros(len(tileset), len(CLASSES))
    for start, raw in tileset.batches(batch_size):
        probs = predict_tiles(model, normalise(raw, device))
        scores[start:start + probs.shape[0]] = probs.cpu()
    return scores


def cross_validated_scores(store, tileset, device, batch_size):
    scores = torch.zeros(len(tileset), len(CLASSES))
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        for fold in range(store.folds):
            started = time.time()
            model = store.load(fold, device)
            scores += predict_fold(model, tileset, device, batch_size)
            del model
            gc.collect()
            torch.cuda.empty_cache()
            print(f"fold {fold}: {len(tileset)} tiles in {time.time() - started:.1f}s", flush=True)
    return scores / store.folds


def slide_summary(scores, tileset):
    per_slide = scores.view(tileset.slides, tileset.tiles_per_slide, len(CLASSES)).mean(1)
    for slide, row in enumerate(per_slide):
        top = row.argsort(descending=True)[:3]
        print(f"slide {slide}: " + ", ".join(f"{CLASSES[i]} {row[i]:.2f}" for i in top.tolist()))


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(7)
    store = FoldStore("weights/tissue", folds=10)
    tileset = TileSet(slides=4, tiles_per_slide=48, seed=7)
    scores = cross_validated_scores(store, tileset, device, batch_size=64)
    slide_summary(scores, tileset)


if __name__ == "__main__":
    main()
