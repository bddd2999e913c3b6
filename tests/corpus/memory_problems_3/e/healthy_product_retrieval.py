"""Metric learning for product photos; after each epoch the recall over the whole test set is computed on the GPU."""
import time

import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 4
BATCH = 256
DIM = 512


class Embedder(nn.Module):
    def __init__(self, din=1024, dim=DIM):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(din, 1024), nn.BatchNorm1d(1024), nn.ReLU(), nn.Linear(1024, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class ProxyLoss(nn.Module):
    def __init__(self, classes, dim, scale=16.0):
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(classes, dim))
        self.scale = scale

    def forward(self, z, y):
        return F.cross_entropy(self.scale * z @ F.normalize(self.proxies, dim=1).T, y)


def train_one_epoch(model, criterion, loader, optimizer, device):
    model.train()
    total = 0.0
    for x, y in loader:
        loss = criterion(model(x.to(device, non_blocking=True)), y.to(device, non_blocking=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def recall_at(model, loader, ks, device):
    model.eval()
    embeddings, labels = [], []
    for x, y in loader:
        embeddings.append(model(x.to(device)))
        labels.append(y.to(device))
    embeddings, labels = torch.cat(embeddings), torch.cat(labels)
    hits = {k: 0.0 for k in ks}
    for start in range(0, len(embeddings), 2048):
        query = embeddings[start:start + 2048]
        sim = query @ embeddings.T
        rows = torch.arange(len(query), device=device)
        sim[rows, rows + start] = -2.0
        found = labels[sim.topk(max(ks), dim=1).indices] == labels[start:start + 2048, None]
        for k in ks:
            hits[k] += found[:, :k].any(dim=1).float().sum().item()
    return {k: v / len(embeddings) for k, v in hits.items()}


def synthetic(n, classes):
    y = torch.arange(n) % classes
    centers = torch.rand(classes, 1024)
    return TensorDataset(centers[y], y)


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    train_set, test_set = synthetic(BATCH * 40, 500), synthetic(BATCH * 60, 500)
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True, pin_memory=True)
    test_loader = DataLoader(test_set, BATCH)
    model, criterion = Embedder().to(device), ProxyLoss(500, DIM).to(device)
    optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=1e-3)
    best = -1.0
    for epoch in range(EPOCHS):
        began = time.time()
        loss = train_one_epoch(model, criterion, train_loader, optimizer, device)
        recall = recall_at(model, test_loader, (1, 5, 10), device)
        best = max(best, recall[1])
        print(f"epoch {epoch} loss {loss:.3f} R@1 {recall[1]:.4f} R@10 {recall[10]:.4f} best {best:.4f} "
              f"({time.time() - began:.1f} s)")


if __name__ == "__main__":
    main()
