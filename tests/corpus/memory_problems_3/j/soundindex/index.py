import torch
import torch.nn.functional as F


class SegmentIndex:
    """Keeps one vector per podcast segment on the device and answers similarity queries."""

    def __init__(self, width):
        self.width = width
        self.vectors = {}

    def __len__(self):
        return len(self.vectors)

    def add(self, keys, vectors):
        for key, vector in zip(keys, vectors):
            self.vectors[key] = vector.detach().float().contiguous()

    def remove_episode(self, episode):
        for key in [k for k in self.vectors if k[0] == episode]:
            del self.vectors[key]

    def query(self, vector, top=5):
        keys = list(self.vectors)
        table = F.normalize(torch.stack([self.vectors[k] for k in keys]), dim=1)
        scores = table @ F.normalize(vector, dim=0)
        order = scores.topk(min(top, len(keys))).indices.clamp(0, len(keys) - 1).tolist()
        return [keys[i] for i in order]
