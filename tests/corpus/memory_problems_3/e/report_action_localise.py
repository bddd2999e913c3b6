"""Temporal action localisation: train a few epochs, then score every frame of the validation videos."""
import argparse

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NUM_CLASSES = 600


class ClipFeatures(torch.utils.data.Dataset):
    """Pre-extracted clip features, one row for each frame."""

    def __init__(self, videos, frames, dim):
        self.videos, self.frames, self.dim = videos, frames, dim

    def __len__(self):
        return self.videos

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        x = np.repeat(rng.standard_normal((1, self.dim), dtype=np.float32), self.frames, axis=0)
        return torch.from_numpy(x), torch.from_numpy(rng.integers(0, NUM_CLASSES, self.frames)), i


class TemporalNet(nn.Module):
    def __init__(self, dim, hidden=256, layers=4):
        super().__init__()
        self.proj = nn.Conv1d(dim, hidden, 1)
        self.convs = nn.ModuleList(nn.Conv1d(hidden, hidden, 3, padding=2 ** i, dilation=2 ** i) for i in range(layers))
        self.cls = nn.Conv1d(hidden, NUM_CLASSES, 1)

    def forward(self, x):
        h = self.proj(x.transpose(1, 2))
        for conv in self.convs:
            h = h + F.relu(conv(h))
        return self.cls(h).transpose(1, 2)


class ValMeter:
    def __init__(self, cfg):
        self.cfg = cfg
        self.reset()

    def reset(self):
        self.errors, self.samples = 0.0, 0
        self.all_preds, self.all_labels = [], []

    def update_stats(self, top1_err, batch):
        self.errors += top1_err * batch
        self.samples += batch

    def update_predictions(self, preds, labels):
        self.all_preds.append(preds)
        self.all_labels.append(labels)

    def log_epoch_stats(self, epoch):
        stats = {"epoch": epoch, "top1_err": round(self.errors / self.samples, 3)}
        preds = [p.cpu().numpy() for p in self.all_preds]
        labels = [x.cpu().numpy() for x in self.all_labels]
        stats["mAP"] = round(mean_average_precision(preds, labels), 4)
        print(stats)


def mean_average_precision(preds, labels, classes=5):
    scores = np.concatenate([p.reshape(-1, p.shape[-1])[::16, :classes] for p in preds])
    truth = np.concatenate([x.reshape(-1)[::16] for x in labels])
    aps = []
    for c in range(classes):
        order = np.argsort(-scores[:, c], kind="stable")
        hits = (truth[order] == c).astype(np.float64)
        if hits.sum():
            precision = hits.cumsum() / np.arange(1, len(hits) + 1)
            aps.append(float((precision * hits).sum() / hits.sum()))
    return sum(aps) / max(1, len(aps))


def train_epoch(loader, model, optimizer, epoch):
    model.train()
    for cur_iter, (inputs, labels, _) in enumerate(loader):
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        preds = model(inputs)
        loss = F.cross_entropy(preds.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cur_iter % 10 == 0:
            print(f"train epoch {epoch} iter {cur_iter} loss {loss.item():.3f}")


@torch.no_grad()
def eval_epoch(loader, model, meter, epoch):
    model.eval()
    meter.reset()
    for inputs, labels, index in loader:
        inputs, labels = inputs.cuda(non_blocking=True), labels.cuda(non_blocking=True)
        preds = model(inputs).softmax(dim=-1)
        err = 1.0 - (preds.argmax(-1) == labels).float().mean()
        meter.update_stats(err.item(), inputs.size(0))
        meter.update_predictions(preds, labels)
    meter.log_epoch_stats(epoch)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--frames", type=int, default=768)
    parser.add_argument("--dim", type=int, default=128)
    cfg = parser.parse_args()
    make = lambda n, **kw: torch.utils.data.DataLoader(ClipFeatures(n, cfg.frames, cfg.dim), batch_size=4, **kw)
    train_loader, val_loader = make(80, shuffle=True), make(320)
    model = TemporalNet(cfg.dim).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter = ValMeter(cfg)
    for epoch in range(cfg.epochs):
        train_epoch(train_loader, model, optimizer, epoch)
        eval_epoch(val_loader, model, meter, epoch)


if __name__ == "__main__":
    main()
