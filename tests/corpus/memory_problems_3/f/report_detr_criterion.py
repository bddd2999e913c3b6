"""Train a small grouped-query detector on aerial tiles."""
import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn

from detr_lite import box_ops


class Detector(nn.Module):
    def __init__(self, n_classes, n_queries, n_groups, width=128, n_layers=3):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=4), nn.GELU(), nn.Conv2d(32, width, 4, stride=4))
        self.queries = nn.Embedding(n_queries * n_groups, width)
        layer = lambda: nn.TransformerDecoderLayer(width, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.ModuleList(layer() for _ in range(n_layers))
        self.class_embed = nn.Linear(width, n_classes + 1)
        self.bbox_embed = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, images):
        memory = self.stem(images).flatten(2).transpose(1, 2)
        x = self.queries.weight.unsqueeze(0).expand(len(images), -1, -1)
        outputs = []
        for layer in self.layers:
            x = layer(x, memory)
            outputs.append({"logits": self.class_embed(x), "boxes": self.bbox_embed(x).sigmoid()})
        return outputs


class Matcher:
    """Assigns every target once in every group of queries."""

    def __init__(self, n_queries, n_groups, seed=0):
        self.n_queries, self.n_groups = n_queries, n_groups
        self.rng = random.Random(seed)

    def __call__(self, targets):
        indices = []
        for t in targets:
            src, tgt = [], []
            for g in range(self.n_groups):
                picks = self.rng.sample(range(self.n_queries), len(t["labels"]))
                src += [g * self.n_queries + q for q in picks]
                tgt += list(range(len(picks)))
            indices.append((torch.tensor(src), torch.tensor(tgt)))
        return indices


class SetCriterion(nn.Module):
    def __init__(self, n_classes, matcher):
        super().__init__()
        self.n_classes, self.matcher = n_classes, matcher

    def _permutation(self, indices):
        batch = torch.cat([torch.full_like(s, i) for i, (s, _) in enumerate(indices)])
        return batch, torch.cat([s for s, _ in indices])

    def loss_labels(self, out, targets, indices, idx):
        gt = torch.cat([t["labels"][j] for t, (_, j) in zip(targets, indices)]).cuda()
        classes = torch.full(out["logits"].shape[:2], self.n_classes, dtype=torch.int64, device="cuda")
        classes[idx] = gt
        return F.cross_entropy(out["logits"].transpose(1, 2), classes)

    def loss_boxes(self, out, targets, indices, idx, num_boxes):
        src_boxes = out["boxes"][idx]
        target_boxes = torch.cat([t["boxes"][j] for t, (_, j) in zip(targets, indices)]).cuda()
        loss_bbox = F.l1_loss(src_boxes, target_boxes, reduction="none")
        loss_giou = 1 - torch.diag(box_ops.generalized_box_iou(
            box_ops.box_cxcywh_to_xyxy(src_boxes),
            box_ops.box_cxcywh_to_xyxy(target_boxes)))
        return loss_bbox.sum() / num_boxes, loss_giou.sum() / num_boxes

    def forward(self, outputs, targets):
        indices = self.matcher(targets)
        idx = tuple(i.cuda() for i in self._permutation(indices))
        num_boxes = max(sum(len(s) for s, _ in indices), 1)
        total = 0.0
        for out in outputs:
            l1, giou = self.loss_boxes(out, targets, indices, idx, num_boxes)
            total = total + 5 * l1 + 2 * giou + self.loss_labels(out, targets, indices, idx)
        return total


def tiles(n, batch, n_classes, rng):
    for _ in range(n):
        targets = []
        for _ in range(batch):
            k = rng.randint(10, 40)
            targets.append({"labels": torch.randint(0, n_classes, (k,)), "boxes": torch.rand(k, 4)})
        yield torch.randn(batch, 3, 128, 128), targets


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--iters", type=int, default=60)
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--queries", type=int, default=60)
    p.add_argument("--groups", type=int, default=11)
    args = p.parse_args()

    n_classes = 15
    model = Detector(n_classes, args.queries, args.groups).cuda()
    criterion = SetCriterion(n_classes, Matcher(args.queries, args.groups))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    for i, (images, targets) in enumerate(tiles(args.iters, args.batch, n_classes, random.Random(4))):
        loss = criterion(model(images.cuda()), targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        if i % 20 == 0:
            print(f"[{i}/{args.iters}] loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
