"""DDP regression; rank 0 alone evaluates, keeps the best weights, and writes checkpoints."""
import copy
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Trainer:
    def __init__(self, rank):
        self.rank = rank
        torch.manual_seed(5)
        self.net = nn.Sequential(nn.Linear(64, 384), nn.SiLU(), nn.Linear(384, 384), nn.SiLU(), nn.Linear(384, 1))
        self.model = DDP(self.net)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.gen = torch.Generator().manual_seed(rank + 1)
        self.best = (float("inf"), None)
        self.log = []
        if rank == 0:
            self.val_x, self.val_y = self.data(2048, torch.Generator().manual_seed(999))
            self.dir = tempfile.mkdtemp()

    @staticmethod
    def data(n, gen):
        x = torch.randn(n, 64, generator=gen)
        return x, x[:, :8].prod(dim=1, keepdim=True).sin()

    def step(self):
        x, y = self.data(64, self.gen)
        loss = nn.functional.mse_loss(self.model(x), y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        self.net.eval()
        preds = torch.cat([self.net(xb) for xb in self.val_x.split(512)])
        self.net.train()
        return (preds - self.val_y).pow(2).mean().item()

    def save(self, step, score):
        if score < self.best[0]:
            self.best = (score, copy.deepcopy(self.net.state_dict()))
        torch.save({"step": step, "model": self.net.state_dict(), "opt": self.opt.state_dict(),
                    "best": self.best[1]}, os.path.join(self.dir, "last.pt"))

    def fit(self, steps=120, every=20):
        for step in range(steps):
            loss = self.step()
            if self.rank == 0:
                self.log.append(loss)
            if (step + 1) % every == 0:
                if self.rank == 0:
                    score = self.evaluate()
                    self.save(step, score)
                    print(f"step {step + 1} train {sum(self.log[-every:]) / every:.4f} val {score:.4f}", flush=True)
                dist.barrier()
        if self.rank == 0:
            shutil.rmtree(self.dir)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer(dist.get_rank()).fit()
    dist.destroy_process_group()
