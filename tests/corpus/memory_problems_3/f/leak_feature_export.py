"""Export patch features of histology slides; two pool threads do the scoring."""
import argparse
import random
from concurrent.futures import ThreadPoolExecutor, as_completed

import torch
from torch import nn


class Slide:
    def __init__(self, name, n_patches):
        self.name, self.n_patches = name, n_patches

    def patches(self, size=56):
        return torch.rand(self.n_patches, 3, size, size)


class PatchEncoder(nn.Module):
    def __init__(self, dim=192):
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 8, stride=8)
        self.block = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        return self.norm(self.block(tokens))


class AttentionPool(nn.Module):
    def __init__(self, dim=192):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, 64), nn.Tanh(), nn.Linear(64, 1))
        self.classify = nn.Linear(dim, 2)

    def forward(self, bag):
        weights = self.score(bag).softmax(0)
        return self.classify((weights * bag).sum(0)), weights.squeeze(-1)


class Exporter:
    def __init__(self, workers):
        self.encoder = PatchEncoder().cuda().eval()
        self.pool = AttentionPool().cuda().eval()
        self.executor = ThreadPoolExecutor(workers, thread_name_prefix="score")
        self.jobs = {}

    def score(self, slide, tokens):
        with torch.no_grad():
            logits, weights = self.pool(tokens.mean(1))
            heat = weights.view(-1, 1, 1) * tokens
        return logits.argmax(-1), heat

    def submit(self, slide):
        with torch.no_grad():
            tokens = self.encoder(slide.patches().cuda())
        job = self.executor.submit(self.score, slide, tokens)
        self.jobs[job] = slide.name
        return job

    def close(self):
        self.executor.shutdown(wait=True)


def worklist(n, seed):
    rng = random.Random(seed)
    for i in range(n):
        yield Slide(f"TCGA-{i:04d}", rng.randint(16, 40))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--slides", type=int, default=160)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--group", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    exporter = Exporter(args.workers)
    group, positive, done = [], 0, 0
    for slide in worklist(args.slides, seed=14):
        group.append(exporter.submit(slide))
        if len(group) == args.group:
            for job in as_completed(group):
                label, heat = job.result()
                positive += int(label.item() > 0)
                done += heat.shape[0]
            group = []
        if len(exporter.jobs) % 40 == 0:
            last = list(exporter.jobs.values())[-1]
            print(f"{last}: {done} patches exported, {positive} positive slides")
    exporter.close()


if __name__ == "__main__":
    main()
