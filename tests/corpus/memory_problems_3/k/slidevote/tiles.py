import torch


class Slide:
    def __init__(self, name, tiles, size=224):
        self.name, self.count, self.size = name, tiles, size
        self.seed = sum(map(ord, name))

    def batches(self, n):
        g = torch.Generator().manual_seed(self.seed)
        base = torch.randint(0, 256, (3, self.size, self.size), generator=g, dtype=torch.uint8)
        for start in range(0, self.count, n):
            m = min(n, self.count - start)
            shift = torch.randint(0, self.size, (m,), generator=g).tolist()
            yield torch.stack([base.roll(k, dims=-1) for k in shift])
