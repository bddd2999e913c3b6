"""Nearest-neighbour defect detection: a memory bank of patch features per product category, then inspection of a mixed line."""
import random

import torch
import torch.nn.functional as F
from torch import nn

CATEGORIES = ["bottle", "cable", "capsule", "hazelnut", "screw", "transistor", "zipper"]


class FeatureExtractor(nn.Module):
    """Frozen backbone; concatenates two stages at the resolution of the first."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=4, padding=3)
        self.layer2 = nn.Conv2d(32, 128, 3, stride=2, padding=1)
        self.layer3 = nn.Conv2d(128, 256, 3, stride=2, padding=1)

    @torch.no_grad()
    def forward(self, images):
        second = self.layer2(self.stem(images).relu()).relu()
        third = self.layer3(second).relu()
        third = F.interpolate(third, size=second.shape[-2:], mode="bilinear", align_corners=False)
        return F.avg_pool2d(torch.cat([second, third], dim=1), 3, stride=1, padding=1)


class KCenterGreedy:
    def __init__(self, ratio, projection=64, rounds=24):
        self.ratio, self.projection, self.rounds = ratio, projection, rounds

    def select(self, embedding):
        count = max(1, int(self.ratio * len(embedding)))
        projected = embedding @ torch.randn(embedding.shape[1], self.projection, device=embedding.device)
        distance = torch.full((len(embedding),), float("inf"), device=embedding.device)
        chosen = [0]
        for _ in range(self.rounds):
            distance = torch.minimum(distance, (projected - projected[chosen[-1]]).norm(dim=1))
            chosen.append(int(distance.argmax()))
        rest = torch.randperm(len(embedding))[: count - len(chosen)].tolist()
        return torch.tensor(chosen + rest, device=embedding.device)


class PatchModel:
    def __init__(self, extractor, coreset_ratio=0.1):
        self.extractor = extractor
        self.sampler = KCenterGreedy(coreset_ratio)
        self.embeddings = []
        self.memory_bank = None

    def embed(self, images):
        features = self.extractor(images)
        return features.permute(0, 2, 3, 1).reshape(-1, features.shape[1])

    def training_step(self, images):
        self.embeddings.append(self.embed(images))

    def fit_end(self):
        embedding = torch.vstack(self.embeddings)
        self.memory_bank = embedding[self.sampler.select(embedding)].clone()

    @torch.no_grad()
    def score(self, images):
        patches = self.embed(images)
        nearest = torch.cat([torch.cdist(part, self.memory_bank).amin(dim=1) for part in patches.split(1024)])
        return nearest.view(len(images), -1).amax(dim=1)


class InspectionLine:
    def __init__(self, threshold):
        self.models = {}
        self.threshold = threshold
        self.rejected = {name: 0 for name in CATEGORIES}

    def enroll(self, name, model):
        self.models[name] = model

    def inspect(self, name, images):
        scores = self.models[name].score(images)
        self.rejected[name] += int((scores > self.threshold).sum())


def normal_images(count, batch_size):
    for _ in range(0, count, batch_size):
        yield torch.rand(batch_size, 3, 256, 256).cuda()


def main():
    random.seed(2)
    extractor = FeatureExtractor().cuda().eval()
    line = InspectionLine(threshold=3.0)
    for name in CATEGORIES:
        model = PatchModel(extractor)
        for images in normal_images(96, 8):
            model.training_step(images)
        model.fit_end()
        line.enroll(name, model)
        print(f"{name}: bank {tuple(model.memory_bank.shape)}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    for _ in range(120):
        line.inspect(random.choice(CATEGORIES), torch.rand(4, 3, 256, 256).cuda())
    print("rejected", line.rejected, f"peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
