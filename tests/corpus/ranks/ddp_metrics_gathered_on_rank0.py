"""DDP training; predictions of all ranks are gathered on rank 0 for the epoch's metric."""
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class EpochAccuracy:
    def __init__(self):
        self.logits = []
        self.targets = []

    def update(self, logits, targets):
        world = dist.get_world_size()
        if dist.get_rank() == 0:
            logit_parts = [torch.empty_like(logits) for _ in range(world)]
            target_parts = [torch.empty_like(targets) for _ in range(world)]
            dist.gather(logits, logit_parts)
            dist.gather(targets, target_parts)
            self.logits += logit_parts
            self.targets += target_parts
        else:
            dist.gather(logits)
            dist.gather(targets)

    def compute(self):
        hits = sum((l.argmax(1) == t).sum().item() for l, t in zip(self.logits, self.targets))
        return hits / max(1, sum(t.numel() for t in self.targets))

    def reset(self):
        self.logits.clear()
        self.targets.clear()


def train_epoch(epoch, model, optimizer, loss_fn, metric, gen, steps=28):
    model.train()
    for _ in range(steps):
        x = torch.randn(64, 96, generator=gen)
        y = torch.randint(0, 400, (64,), generator=gen)
        out = model(x)
        loss = loss_fn(out, y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        metric.update(out.detach(), y)
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.3f} acc {metric.compute():.4f}", flush=True)


def main():
    dist.init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(96, 256), nn.ReLU(), nn.Linear(256, 400))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(rank)
    metric = EpochAccuracy()
    for epoch in range(5):
        train_epoch(epoch, model, optimizer, nn.CrossEntropyLoss(), metric, gen)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
