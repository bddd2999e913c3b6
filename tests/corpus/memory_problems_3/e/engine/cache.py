"""Static key/value cache with one slot for each running request."""
import torch


class LayerCache:
    def __init__(self, slots, heads, max_seq, head_dim, dtype, device):
        shape = (slots, heads, max_seq, head_dim)
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, slot, start, k, v):
        end = start + k.shape[1]
        self.k[slot, :, start:end] = k
        self.v[slot, :, start:end] = v
        return self.k[slot:slot + 1, :, :end], self.v[slot:slot + 1, :, :end]


class StaticCache:
    def __init__(self, layers, slots, heads, max_seq, head_dim, dtype=torch.float32, device="cuda"):
        self.max_seq = max_seq
        self.layers = []
        for _ in range(layers):
            self.layers.append(LayerCache(slots, heads, max_seq, head_dim, dtype, device))
        self.lengths = [0] * slots
        self.free = list(range(slots))

    def acquire(self):
        slot = self.free.pop()
        self.lengths[slot] = 0
        return slot

    def release(self, slot):
        self.free.append(slot)
