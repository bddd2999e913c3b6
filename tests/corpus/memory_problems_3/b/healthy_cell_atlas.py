"""Contrastive embedding of single cells, with a neighbour check over all cells after each epoch."""
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

GENES, CELLS, WIDTH = 2000, 24_000, 1024


class CellEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(GENES, 2048), nn.LayerNorm(2048), nn.ReLU(), nn.Linear(2048, WIDTH))
        self.project = nn.Linear(WIDTH, 128)

    def forward(self, counts):
        return self.net(torch.log1p(counts))


def augment(counts, drop=0.2):
    return counts * (torch.rand_like(counts) > drop)


def contrast(a, b, temperature=0.2):
    a, b = F.normalize(a, dim=1), F.normalize(b, dim=1)
    logits = a @ b.T / temperature
    target = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


@torch.no_grad()
def embed_all(encoder, cells, batch=2000):
    encoder.eval()
    parts = []
    for (counts,) in DataLoader(TensorDataset(cells), batch_size=batch):
        parts.append(encoder(counts.to("cuda")))
    encoder.train()
    return F.normalize(torch.cat(parts), dim=1)


@torch.no_grad()
def neighbour_purity(embedding, types, queries=500, k=15):
    rows = torch.arange(0, len(embedding), len(embedding) // queries).to(embedding.device)
    near = (embedding[rows] @ embedding.T).topk(k + 1, dim=1).indices[:, 1:].clamp(0, len(embedding) - 1)
    return (types[near] == types[rows].unsqueeze(1)).float().mean().item()


def main(epochs=4):
    torch.manual_seed(0)
    cells = torch.zeros(CELLS, GENES)
    cells[:, ::50] = torch.arange(CELLS).remainder(12).float().unsqueeze(1)
    types = torch.arange(CELLS).remainder(12).cuda()
    encoder = CellEncoder().cuda()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-3)
    for epoch in range(epochs):
        for (counts,) in DataLoader(TensorDataset(cells), batch_size=1000, shuffle=True):
            counts = counts.cuda()
            first = encoder.project(encoder(augment(counts)))
            second = encoder.project(encoder(augment(counts)))
            loss = contrast(first, second)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        embedding = embed_all(encoder, cells)
        purity = neighbour_purity(embedding, types)
        print(f"epoch {epoch}: loss {loss.item():.3f} purity {purity:.3f} "
              f"now {torch.cuda.memory_allocated() >> 20} MiB", flush=True)
        del embedding


if __name__ == "__main__":
    main()
