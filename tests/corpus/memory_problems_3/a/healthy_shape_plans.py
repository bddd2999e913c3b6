"""Point cloud inference with plans: static input and work buffers are made once for each bucket of sizes."""
import random
from functools import partial

import torch
from torch import nn

BUCKETS = (1024, 2048, 4096, 8192, 16384, 32768)


class PointNet(nn.Module):
    def __init__(self, widths=(3, 128, 256, 1024), classes=40):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(widths, widths[1:]))
        self.classify = nn.Sequential(nn.Linear(widths[-1], 512), nn.ReLU(), nn.Linear(512, classes))


class Plan:
    """Buffers for one bucket and batch; replayed without new memory."""

    def __init__(self, model, batch, points, device):
        make = partial(torch.empty, device=device)
        self.model = model
        self.points = make(batch, points, 3)
        self.mask = make(batch, points, 1)
        self.work = [make(batch, points, layer.out_features) for layer in model.layers]
        self.scores = make(batch, 40)
        self.replays = 0

    def replay(self, clouds):
        self.points.zero_()
        self.mask.fill_(float("-inf"))
        for row, cloud in enumerate(clouds):
            self.points[row, : len(cloud)].copy_(cloud, non_blocking=True)
            self.mask[row, : len(cloud)] = 0.0
        x = self.points
        for layer, work in zip(self.model.layers, self.work):
            torch.matmul(x, layer.weight.t(), out=work)
            x = work.add_(layer.bias).relu_()
        self.scores.copy_(self.model.classify(x.add_(self.mask).amax(dim=1)))
        self.replays += 1
        return self.scores


class Engine:
    def __init__(self, device, batch=8):
        self.device = device
        self.batch = batch
        self.model = PointNet().to(device).eval()
        self.plans = {}

    def plan_for(self, points):
        bucket = next(bucket for bucket in BUCKETS if bucket >= points)
        if bucket not in self.plans:
            self.plans[bucket] = Plan(self.model, self.batch, bucket, self.device)
            print(f"plan for {bucket} points: {torch.cuda.memory_allocated() >> 20} MiB")
        return self.plans[bucket]

    @torch.inference_mode()
    def __call__(self, clouds):
        plan = self.plan_for(max(len(cloud) for cloud in clouds))
        return plan.replay(clouds)[: len(clouds)].argmax(dim=1).cpu()


def scans(batches, batch, seed=9):
    rng = random.Random(seed)
    for number in range(batches):
        largest = min(32768, 900 + number * 150)
        yield [torch.zeros(rng.randint(300, largest), 3) for _ in range(batch)]


if __name__ == "__main__":
    engine = Engine(torch.device("cuda"))
    for number, clouds in enumerate(scans(300, 8)):
        engine(clouds)
    print({bucket: plan.replays for bucket, plan in engine.plans.items()}, torch.cuda.memory_allocated() >> 20, "MiB")
