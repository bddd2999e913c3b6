"""Tiles and their split by region."""
import torch


class Tiles:
    def __init__(self, regions=6, per_region=8, bands=10, classes=9, seed=0):
        generator = torch.Generator().manual_seed(seed)
        count = regions * per_region
        self.images = torch.randn(count, bands, 128, 128, generator=generator)
        self.labels = torch.randint(0, classes, (count, 128, 128), generator=generator)
        self.region = torch.arange(count) // per_region
        self.regions = regions

    def split(self, held_out):
        keep = self.region != held_out
        return keep.nonzero().flatten(), (~keep).nonzero().flatten()

    def batches(self, index, size, crop=None):
        for part in index.split(size):
            images, labels = self.images[part], self.labels[part]
            if crop:
                images, labels = images[..., :crop, :crop], labels[..., :crop, :crop]
            yield images, labels
