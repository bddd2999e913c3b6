import numpy as np
import torch
from torch.utils.data import Dataset

HEIGHT = 96


class LineDataset(Dataset):
    """Scanned parish register lines; some short scans carry the transcript of a whole paragraph."""

    def __init__(self, count, seed, merged=0.045):
        rng = np.random.default_rng(seed)
        self.widths = rng.integers(800, 1200, count)
        self.lengths = rng.integers(20, 60, count)
        swapped = rng.random(count) < merged
        self.lengths[swapped] = rng.integers(320, 480, swapped.sum())
        self.seed = seed

    def __len__(self):
        return len(self.widths)

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed * 1000 + i)
        text = torch.from_numpy(rng.integers(1, 90, self.lengths[i]))
        image = torch.from_numpy(rng.integers(0, 255, (1, HEIGHT, self.widths[i]), dtype=np.uint8))
        return image, text


def collate(items):
    width = max(image.shape[-1] for image, _ in items)
    images = torch.zeros(len(items), 1, HEIGHT, width, dtype=torch.uint8)
    for row, (image, _) in zip(images, items):
        row[..., :image.shape[-1]] = image
    widths = torch.tensor([image.shape[-1] for image, _ in items])
    lengths = torch.tensor([len(text) for _, text in items])
    return images, torch.cat([text for _, text in items]), widths, lengths
