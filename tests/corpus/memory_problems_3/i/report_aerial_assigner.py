"""Vehicle detection in aerial tiles: an anchor-free head trained with task-aligned assignment."""
import random
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 12
TILE = 640
STRIDES = (8, 16, 32)
BATCH = 16
STEPS = 60


class TinyDetector(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.ReLU())
        self.stages = nn.ModuleList()
        channels = width
        for _ in STRIDES:
            self.stages.append(nn.Sequential(
                nn.Conv2d(channels, 2 * width, 3, stride=2, padding=1), nn.ReLU()))
            channels = 2 * width
        self.heads = nn.ModuleList(nn.Conv2d(2 * width, 4 + CLASSES, 1) for _ in STRIDES)

    def forward(self, tiles):
        x = self.stem(tiles)
        levels = []
        for stage, head in zip(self.stages, self.heads):
            x = stage(x)
            levels.append(head(x).flatten(2))
        raw = torch.cat(levels, dim=2).transpose(1, 2)
        return raw[..., :4].exp(), raw[..., 4:]


def anchor_points(device):
    points = []
    for stride in STRIDES:
        cells = torch.arange(TILE // stride, device=device) * stride + stride / 2
        grid = torch.stack(torch.meshgrid(cells, cells, indexing="xy"), dim=-1)
        points.append(grid.reshape(-1, 2))
    return torch.cat(points)


def decode(points, distances):
    return torch.cat([points - distances[..., :2], points + distances[..., 2:]], dim=-1)


def box_iou(a, b, eps=1e-7):
    ax1, ay1, ax2, ay2 = a.unbind(-1)
    bx1, by1, bx2, by2 = b.unbind(-1)
    overlap = ((torch.minimum(ax2, bx2) - torch.maximum(ax1, bx1)).clamp(min=0)
               * (torch.minimum(ay2, by2) - torch.maximum(ay1, by1)).clamp(min=0))
    union = (ax2 - ax1) * (ay2 - ay1) + (bx2 - bx1) * (by2 - by1) - overlap
    return overlap / (union + eps)


class TaskAlignedAssigner:
    def __init__(self, topk=10, alpha=0.5, beta=6.0):
        self.topk, self.alpha, self.beta = topk, alpha, beta

    @torch.no_grad()
    def __call__(self, scores, boxes, points, gt_boxes, gt_labels, gt_valid):
        n_boxes, n_anchors = gt_boxes.shape[1], boxes.shape[1]
        lead = gt_boxes[:, :, None, :2] - points
        trail = points - gt_boxes[:, :, None, 2:]
        inside = torch.cat([lead.neg(), trail.neg()], dim=-1).amin(dim=-1) > 0
        overlaps = box_iou(gt_boxes[:, :, None], boxes[:, None])
        class_index = gt_labels[:, :, None].expand(-1, -1, n_anchors)
        class_scores = scores.transpose(1, 2).gather(1, class_index)
        metric = class_scores.pow(self.alpha) * overlaps.pow(self.beta)
        metric = metric * inside * gt_valid[:, :, None]
        top = metric.topk(self.topk, dim=-1).indices
        positive = torch.zeros_like(metric, dtype=torch.bool).scatter_(-1, top, True)
        owner = (overlaps * positive).argmax(dim=1).clamp(0, n_boxes - 1)
        foreground = positive.any(dim=1)
        target_boxes = gt_boxes.gather(1, owner[..., None].expand(-1, -1, 4))
        return target_boxes, gt_labels.gather(1, owner), foreground


class AerialTiles:
    """Suburban tiles hold a few dozen vehicles; a car park holds hundreds."""

    def __init__(self, device, seed=4):
        self.device = device
        self.rng = random.Random(seed)

    def batch(self):
        counts = [self.rng.randint(4, 30) for _ in range(BATCH)]
        if self.rng.random() < 0.25:
            counts[self.rng.randrange(BATCH)] = self.rng.randint(240, 360)
        most = max(counts)
        boxes = torch.zeros(BATCH, most, 4)
        labels = torch.zeros(BATCH, most, dtype=torch.long)
        valid = torch.zeros(BATCH, most)
        for row, count in enumerate(counts):
            corner = torch.rand(count, 2) * (TILE - 24)
            boxes[row, :count] = torch.cat([corner, corner + 20], dim=1)
            labels[row, :count] = torch.randint(0, CLASSES, (count,))
            valid[row, :count] = 1.0
        tiles = torch.rand(BATCH, 3, TILE, TILE, device=self.device)
        return [t.to(self.device) for t in (tiles, boxes, labels, valid)]


def detection_loss(scores, boxes, targets):
    target_boxes, target_labels, foreground = targets
    weight = foreground.float()
    cls = F.cross_entropy(scores.transpose(1, 2), target_labels, reduction="none")
    reg = 1 - box_iou(boxes, target_boxes)
    return ((cls + reg) * weight).sum() / weight.sum().clamp(min=1)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = TinyDetector().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    points, assigner, tiles = anchor_points(device), TaskAlignedAssigner(), AerialTiles(device)
    for step in range(STEPS):
        images, gt_boxes, gt_labels, gt_valid = tiles.batch()
        distances, logits = model(images)
        boxes = decode(points, distances)
        targets = assigner(logits.detach().sigmoid(), boxes.detach(), points,
                           gt_boxes, gt_labels, gt_valid)
        loss = detection_loss(logits, boxes, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 19:
            print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
