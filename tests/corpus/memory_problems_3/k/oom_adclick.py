"""Daily refresh of the click-through model (one pass over the day)."""
import argparse
import time

import torch
import torch.nn.functional as F

from ctr.model import ClickNet
from ctr.optim import SplitOptimizer
from ctr.stream import ClickStream


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("device", nargs="?", default="cuda")
    ap.add_argument("--rows", type=int, default=700_000)
    ap.add_argument("--batch", type=int, default=8_192)
    ap.add_argument("--buckets", type=int, default=2_000_000)
    return ap.parse_args()


class Refresh:
    def __init__(self, args):
        self.args = args
        self.model = ClickNet(fields=26, buckets=args.buckets, dense_in=13).to(args.device)
        self.opt = SplitOptimizer(self.model)
        self.running = None

    def train_batch(self, dense, cats, label):
        dense, cats, label = (t.to(self.args.device, non_blocking=True) for t in (dense, cats, label))
        self.opt.zero_grad()
        loss = F.binary_cross_entropy_with_logits(self.model(dense, cats), label)
        loss.backward()
        self.opt.step()
        value = loss.item()
        self.running = value if self.running is None else 0.98 * self.running + 0.02 * value
        return value

    @torch.no_grad()
    def holdout(self, stream, n=2):
        total = 0.0
        for k, (dense, cats, label) in enumerate(stream.batches(self.args.batch)):
            if k == n:
                break
            out = self.model(dense.to(self.args.device), cats.to(self.args.device))
            total += F.binary_cross_entropy_with_logits(out, label.to(self.args.device)).item()
        return total / n


def main():
    args = parse()
    torch.manual_seed(20)
    job = Refresh(args)
    day = ClickStream(args.rows, 26, 13, args.buckets, seed=1)
    held = ClickStream(args.rows, 26, 13, args.buckets, seed=2)
    t0 = time.time()
    for i, batch in enumerate(day.batches(args.batch)):
        job.train_batch(*batch)
        if i % 10 == 0:
            print(f"batch {i:4d} logloss {job.running:.5f} {time.time() - t0:.1f}s", flush=True)
        if i % 50 == 49:
            print(f"  holdout {job.holdout(held):.5f}", flush=True)
    print("day done")


if __name__ == "__main__":
    main()
