import torch
import torch.nn.functional as F


class FlatIndex:
    """Exact inner-product index over normalised vectors."""

    def __init__(self):
        self._pending = []
        self._ids = []
        self.vectors = None

    def add(self, ids, vectors):
        self._ids.extend(ids)
        self._pending.append(vectors)

    def __len__(self):
        return len(self._ids)

    def finalize(self):
        self.vectors = F.normalize(torch.cat(self._pending), dim=-1)
        self._pending.clear()

    def search(self, queries, k=10):
        scores = F.normalize(queries, dim=-1) @ self.vectors.T
        return scores.topk(k, dim=-1)
