import torch


class LeafScans:
    """Synthetic stand-in for the orchard scanner: RGB crops, a disease label, a severity grade."""

    def __init__(self, batches, batch_size, size, classes, seed=11):
        self.batches, self.batch_size = batches, batch_size
        self.size, self.classes = size, classes
        self.rng = torch.Generator().manual_seed(seed)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            images = torch.rand(self.batch_size, 3, self.size, self.size, generator=self.rng)
            labels = torch.randint(0, self.classes, (self.batch_size,), generator=self.rng)
            grade = torch.rand(self.batch_size, generator=self.rng)
            yield images, labels, grade
