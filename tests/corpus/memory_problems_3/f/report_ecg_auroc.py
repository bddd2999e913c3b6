"""Multi-label arrhythmia detection on 12-lead ECG segments, with AUROC per finding."""
import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FINDINGS = ["AF", "LBBB", "RBBB", "PVC", "STD", "STE", "PAC", "I-AVB", "SNR"]


class Segments(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(64, 12, 1000, generator=g)
        self.y = torch.randint(0, 2, (64, len(FINDINGS)), generator=g)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.x[i % 64], self.y[i % 64]


class Block(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.conv = nn.Conv1d(cin, cout, 7, stride=2, padding=3)
        self.norm = nn.BatchNorm1d(cout)

    def forward(self, x):
        return torch.relu(self.norm(self.conv(x)))


class EcgNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(Block(12, 32), Block(32, 64), Block(64, 96), Block(96, 128))
        self.head = nn.Linear(128, len(FINDINGS))

    def forward(self, x):
        return self.head(self.features(x).mean(-1))


class MultilabelAUROC:
    """Exact area under the curve: keeps all scores until compute()."""

    def __init__(self, num_labels):
        self.num_labels = num_labels
        self.reset()

    def reset(self):
        self.preds = []
        self.target = []

    def __call__(self, preds, target):
        self.preds.append(preds.sigmoid())
        self.target.append(target)

    def compute(self):
        preds = torch.cat(self.preds)
        target = torch.cat(self.target)
        order = preds.argsort(dim=0)
        ranks = torch.zeros_like(preds).scatter_(
            0, order, torch.arange(1.0, len(preds) + 1, device=preds.device).unsqueeze(1).expand_as(order))
        pos = target.sum(0).clamp(min=1)
        neg = (1 - target).sum(0).clamp(min=1)
        u = (ranks * target).sum(0) - pos * (pos + 1) / 2
        return u / (pos * neg)


def train_epoch(model, loader, optimizer, criterion):
    model.train()
    running = 0.0
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad(set_to_none=True)
        loss = criterion(model(x), y.float())
        loss.backward()
        optimizer.step()
        running += loss.item()
    return running / len(loader)


def validate(model, loader, metric):
    model.eval()
    for x, y in loader:
        scores = model(x.cuda())
        metric(scores, y.cuda())
    result = metric.compute()
    metric.reset()
    return result.detach().cpu()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=2)
    ap.add_argument("--batch", type=int, default=32)
    args = ap.parse_args()
    torch.manual_seed(0)

    train = DataLoader(Segments(640, 0), batch_size=args.batch, shuffle=True)
    valid = DataLoader(Segments(2240, 1), batch_size=args.batch)
    model = EcgNet().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    criterion = nn.BCEWithLogitsLoss()
    metric = MultilabelAUROC(len(FINDINGS))

    for epoch in range(args.epochs):
        t0 = time.time()
        loss = train_epoch(model, train, optimizer, criterion)
        auroc = validate(model, valid, metric)
        print(f"epoch {epoch} loss {loss:.4f} mean AUROC {auroc.mean():.3f} ({time.time() - t0:.1f}s)")


if __name__ == "__main__":
    main()
