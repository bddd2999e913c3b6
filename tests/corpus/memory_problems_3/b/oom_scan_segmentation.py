"""Semantic labelling of terrestrial laser scans of building interiors."""
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

NUM_POINTS = 16384
NEIGHBOURS = 16
BATCH_SIZE = 48
NUM_CLASSES = 13
STEPS = 40
DEVICE = torch.device("cuda")


def read_block(rng, points=NUM_POINTS):
    """One block of a room: xyz, rgb and the relative height, and a label per point."""
    scale = rng.uniform(0.5, 2.0)
    xyz = torch.rand(points, 3) * scale
    rgb = torch.rand(points, 3)
    height = xyz[:, 2:] / max(scale, 1e-3)
    label = torch.full((points,), rng.randrange(NUM_CLASSES), dtype=torch.long)
    return torch.cat([xyz, rgb, height], dim=1), label


def collate(blocks):
    features, labels = zip(*blocks)
    return torch.stack(features), torch.stack(labels)


class EdgeConv(nn.Module):
    def __init__(self, in_dim, out_dim):
        super().__init__()
        self.lin = nn.Linear(2 * in_dim, out_dim)
        self.norm = nn.LayerNorm(out_dim)

    def forward(self, x, index):
        batch, points, dim = x.shape
        flat = index.reshape(batch, -1, 1).expand(-1, -1, dim)
        neighbours = x.gather(1, flat).view(batch, points, -1, dim)
        centre = x.unsqueeze(2).expand_as(neighbours)
        edge = torch.cat([centre, neighbours - centre], dim=-1)
        return F.gelu(self.norm(self.lin(edge))).amax(dim=2)


class SceneNet(nn.Module):
    def __init__(self, in_dim=7, width=32):
        super().__init__()
        self.edge1 = EdgeConv(in_dim, width)
        self.edge2 = EdgeConv(width, width)
        self.point = nn.Sequential(nn.Linear(2 * width, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU())
        self.cls = nn.Linear(256, NUM_CLASSES)

    def forward(self, points, index):
        a = self.edge1(points, index)
        b = self.edge2(a, index)
        local = self.point(torch.cat([a, b], dim=-1))
        scene = local.amax(dim=1, keepdim=True).expand_as(local)
        return self.cls(torch.cat([local, scene], dim=-1))


def neighbour_index(batch, points, k):
    """Blocks are stored along a space filling curve, so near rows are near in space."""
    base = torch.arange(points).unsqueeze(1) + torch.arange(k) - k // 2
    return base.clamp_(0, points - 1).unsqueeze(0).expand(batch, -1, -1).contiguous()


def learning_rate(step, peak=2e-3, warm=10):
    if step < warm:
        return peak * (step + 1) / warm
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm) / max(1, STEPS - warm)))


rng = random.Random(7)
torch.manual_seed(7)
model = SceneNet().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
index = neighbour_index(BATCH_SIZE, NUM_POINTS, NEIGHBOURS).to(DEVICE)
print("parameters", sum(p.numel() for p in model.parameters()))

for step in range(STEPS):
    points, labels = collate([read_block(rng) for _ in range(BATCH_SIZE)])
    points, labels = points.to(DEVICE), labels.to(DEVICE)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    logits = model(points, index)
    loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} loss {loss.item():.4f}")

torch.save(model.state_dict(), "/tmp/scenenet.pt")
print("done")
