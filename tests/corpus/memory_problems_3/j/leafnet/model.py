from torch import nn

from .blocks import Downsample, LeafBlock


class LeafNet(nn.Module):
    def __init__(self, classes, dims=(96, 192, 384), depths=(2, 2, 4)):
        super().__init__()
        self.stem = nn.Conv2d(3, dims[0], 4, stride=4)
        stages = []
        for i, (dim, depth) in enumerate(zip(dims, depths)):
            if i:
                stages.append(Downsample(dims[i - 1], dim))
            stages.extend(LeafBlock(dim) for _ in range(depth))
        self.stages = nn.Sequential(*stages)
        self.norm = nn.LayerNorm(dims[-1])
        self.disease = nn.Linear(dims[-1], classes)
        self.severity = nn.Linear(dims[-1], 1)

    def forward(self, images):
        features = self.stages(self.stem(images))
        pooled = self.norm(features.mean((2, 3)))
        return self.disease(pooled), self.severity(pooled).squeeze(-1)
