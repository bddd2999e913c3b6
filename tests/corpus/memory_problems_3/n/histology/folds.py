import os

import torch

from .vit import TissueClassifier


class FoldStore:
    """Weights of the cross-validation folds, one file per fold."""

    def __init__(self, folder, folds):
        self.folder = folder
        self.folds = folds

    def path(self, fold):
        return os.path.join(self.folder, f"fold{fold}.pt")

    def load(self, fold, device):
        torch.manual_seed(1000 + fold)
        with torch.device(device):
            model = TissueClassifier()
        if os.path.exists(self.path(fold)):
            model.load_state_dict(torch.load(self.path(fold), map_location="cpu"))
        return model.eval()


class TileSet:
    def __init__(self, slides, tiles_per_slide, seed=0):
        self.slides = slides
        self.tiles_per_slide = tiles_per_slide
        self.generator = torch.Generator().manual_seed(seed)
        self.pool = torch.randint(0, 255, (64, 3, 224, 224), generator=self.generator, dtype=torch.uint8)

    def __len__(self):
        return self.slides * self.tiles_per_slide

    def batches(self, size):
        for start in range(0, len(self), size):
            count = min(size, len(self) - start)
            yield start, self.pool[torch.arange(count) % 64]
