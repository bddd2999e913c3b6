import torch
import torch.nn as nn


class ClickNet(nn.Module):
    """One shared hash table for all categorical fields, pairwise dot interaction on top."""

    def __init__(self, fields, buckets, dense_in, dim=32):
        super().__init__()
        self.table = nn.Embedding(buckets, dim, sparse=True)
        self.bottom = nn.Sequential(nn.Linear(dense_in, 256), nn.ReLU(), nn.Linear(256, dim))
        pairs = (fields + 1) * fields // 2
        self.top = nn.Sequential(nn.Linear(pairs + dim, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        idx = torch.triu_indices(fields + 1, fields + 1, offset=1)
        self.register_buffer("rows", idx[0], persistent=False)
        self.register_buffer("cols", idx[1], persistent=False)
        nn.init.normal_(self.table.weight, std=0.01)

    def forward(self, dense, cats):
        d = self.bottom(dense)
        v = torch.cat([d.unsqueeze(1), self.table(cats)], dim=1)
        inter = torch.bmm(v, v.transpose(1, 2))[:, self.rows, self.cols]
        return self.top(torch.cat([d, inter], dim=1)).squeeze(1)

    def dense_parameters(self):
        return [p for n, p in self.named_parameters() if not n.startswith("table.")]
