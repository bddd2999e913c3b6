"""Grade the hold-out slides with the full cross-validation ensemble."""
import sys
import time
from collections import defaultdict

import torch

from slidevote.members import Registry
from slidevote.tiles import Slide

MEAN = torch.tensor([0.70, 0.54, 0.69]).view(1, 3, 1, 1)
STD = torch.tensor([0.23, 0.28, 0.21]).view(1, 3, 1, 1)
HOLDOUT = [("S-0417", 40), ("S-0422", 56), ("S-0431", 24)]
TILE_BATCH = 16


class Grader:
    def __init__(self, device):
        self.device = torch.device(device)
        self.mean, self.std = MEAN.to(self.device), STD.to(self.device)

    def prepare(self, tiles):
        x = tiles.to(self.device).float().div_(255.0)
        return (x - self.mean) / self.std

    def slide_probability(self, net, slide):
        """Mean over tiles and the horizontal flip."""
        total, seen = None, 0
        for tiles in slide.batches(TILE_BATCH):
            x = self.prepare(tiles)
            p = (net(x).float().softmax(-1) + net(x.flip(-1)).float().softmax(-1)).div(2).sum(0).cpu()
            total = p if total is None else total + p
            seen += len(tiles)
        return total / seen

    @torch.no_grad()
    def vote(self, registry, slides):
        votes = defaultdict(list)
        start = time.time()
        with torch.autocast(self.device.type, dtype=torch.float16):
            for n, key in enumerate(registry.keys):
                net = registry.open(key, self.device)
                for slide in slides:
                    votes[slide.name].append(self.slide_probability(net, slide))
                del net
                print(f"member {n + 1:2d}/{len(registry)} fold {key[0]} seed {key[1]}  {time.time() - start:.1f}s", flush=True)
        return {name: torch.stack(v) for name, v in votes.items()}


def agreement(votes):
    top = votes.argmax(-1)
    counts = torch.bincount(top, minlength=votes.shape[-1])
    return counts.max().item() / len(top)


def report(results):
    print(f"{'slide':10s} grade  mean-p  agreement")
    for name, votes in results.items():
        mean = votes.mean(0)
        grade = int(mean.argmax())
        print(f"{name:10s} {grade:5d}  {mean[grade]:.3f}   {agreement(votes):.2f}")


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    slides = [Slide(name, tiles) for name, tiles in HOLDOUT]
    report(Grader(device).vote(Registry(), slides))


if __name__ == "__main__":
    main()
