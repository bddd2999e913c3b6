import torch


class RotaryTable:
    """Cosines and sines for rotary positions; rebuilt at twice the size when a longer text comes."""

    def __init__(self, dimensions, longest, device, base=10000.0):
        self.dimensions = dimensions
        self.longest = longest
        self.device = device
        self.base = base
        self.by_layout = {}

    def _build(self, length):
        steps = torch.arange(0, self.dimensions, 2, device=self.device).float()
        angles = torch.outer(torch.arange(length, device=self.device).float(), self.base ** (-steps / self.dimensions))
        return angles.cos().repeat(1, 2).contiguous(), angles.sin().repeat(1, 2).contiguous()

    def get(self, length, layout="text"):
        table = self.by_layout.get(layout)
        if table is None or len(table[0]) < length:
            size = 1024
            while size < length:
                size *= 2
            table = self.by_layout[layout] = self._build(min(size, self.longest))
        return table[0][:length], table[1][:length]


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
