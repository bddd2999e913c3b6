"""Concrete crack inspection: per-pixel precision-recall curves of a segmentation network."""
import sys

import torch
import torch.nn as nn

TILE = 384
BATCH = 8
TILES = 64
THRESHOLDS = 200


class CrackNet(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, 1, 1))

    def forward(self, tiles):
        return self.net(tiles)


class InspectionTiles:
    def __init__(self, batches, device):
        self.batches = batches
        self.device = device
        self.gen = torch.Generator().manual_seed(21)

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            base = torch.rand(BATCH, 1, TILE // 8, TILE // 8, generator=self.gen)
            tiles = base.repeat(1, 1, 8, 8)
            cracks = (tiles > 0.97).squeeze(1).long()
            yield tiles.to(self.device), cracks.to(self.device)


class BinnedPrecisionRecall:
    """Running counts at a fixed set of thresholds; the state is three short vectors."""

    def __init__(self, thresholds, device):
        self.thresholds = torch.linspace(0, 1, thresholds, device=device)
        self.true_positive = torch.zeros(thresholds, device=device)
        self.false_positive = torch.zeros(thresholds, device=device)
        self.false_negative = torch.zeros(thresholds, device=device)

    def update(self, scores, target):
        scores = scores.flatten()
        target = target.flatten().float()
        detected = (scores[:, None] >= self.thresholds[None, :]).float()
        hits = (detected * target[:, None]).sum(dim=0)
        self.true_positive += hits
        self.false_positive += detected.sum(dim=0) - hits
        self.false_negative += target.sum() - hits

    def compute(self):
        precision = self.true_positive / (self.true_positive + self.false_positive).clamp(min=1)
        recall = self.true_positive / (self.true_positive + self.false_negative).clamp(min=1)
        return precision, recall

    def average_precision(self):
        precision, recall = self.compute()
        return float(((recall[:-1] - recall[1:]) * precision[:-1]).sum())


class Inspector:
    def __init__(self, device):
        self.model = CrackNet().to(device).eval()
        self.curve = BinnedPrecisionRecall(THRESHOLDS, device)
        self.crack_share = []

    @torch.inference_mode()
    def batch(self, tiles, cracks):
        scores = self.model(tiles).sigmoid().squeeze(1)
        self.curve.update(scores, cracks)
        self.crack_share.append(cracks.float().mean().item())

    def best_threshold(self):
        precision, recall = self.curve.compute()
        f1 = 2 * precision * recall / (precision + recall).clamp(min=1e-6)
        return int(f1.argmax()) % THRESHOLDS


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    inspector = Inspector(device)
    data = InspectionTiles(TILES, device)
    for index, (tiles, cracks) in enumerate(data):
        inspector.batch(tiles, cracks)
        if index % 16 == 15:
            print(f"{index + 1:3d}/{len(data)} batches  "
                  f"AP {inspector.curve.average_precision():.4f}")
    print("best threshold index", inspector.best_threshold())


if __name__ == "__main__":
    main()
