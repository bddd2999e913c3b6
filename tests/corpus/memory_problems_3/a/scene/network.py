import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs),
        )
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        return torch.relu(self.body(x) + self.skip(x))


class SceneNet(nn.Module):
    """Predicts classes, depth and surface normals of a scene from one picture."""

    def __init__(self, widths=(64, 128, 256, 512), classes=40):
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 7, 4, 3)
        blocks, inputs = [], widths[0]
        for level, width in enumerate(widths):
            blocks += [Residual(inputs, width, 1 if level == 0 else 2), Residual(width, width), Residual(width, width)]
            inputs = width
        self.trunk = nn.Sequential(*blocks)
        self.heads = nn.ModuleDict({
            name: nn.Sequential(nn.Conv2d(inputs, 256, 3, 1, 1), nn.ReLU(), nn.Conv2d(256, outputs, 1))
            for name, outputs in (("classes", classes), ("depth", 1), ("normals", 3))
        })

    def forward(self, images):
        features = self.trunk(self.stem(images))
        return {name: head(features) for name, head in self.heads.items()}


def scene_losses(outputs, targets):
    return {
        "classes": nn.functional.cross_entropy(outputs["classes"], targets["classes"]),
        "depth": nn.functional.l1_loss(outputs["depth"], targets["depth"]),
        "normals": 1 - nn.functional.cosine_similarity(outputs["normals"], targets["normals"], dim=1).mean(),
    }
