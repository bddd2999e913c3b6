"""A row-sharded embedding table with a small replicated head, and an estimate of the gradient noise."""
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F

ROWS, DIM, BATCH, STEPS = 3000, 64, 96, 90


def make_noise_meter(params):
    collected = []

    def record():
        collected.append([p.grad.clone() for p in params])

    def estimate(window=8):
        tail = collected[-window:]
        if len(tail) < 2:
            return 0.0
        return sum(torch.stack(gs).var(dim=0).sum().item() for gs in zip(*tail))

    return record, estimate


def lookup(table, ids, lo, hi):
    """Every rank contributes the rows it owns; gradients flow into its own rows only."""
    mine = (ids >= lo) & (ids < hi)
    local = F.embedding((ids - lo).clamp(0, hi - lo - 1), table) * mine.unsqueeze(1)
    full = local.detach().clone()
    dist.all_reduce(full)
    return local + (full - local.detach())


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    lo, hi = rank * ROWS // world, (rank + 1) * ROWS // world
    torch.manual_seed(rank)
    table = (torch.randn(hi - lo, DIM) * 0.1).requires_grad_()
    torch.manual_seed(0)
    head = (torch.randn(DIM, 5) * 0.1).requires_grad_()
    opt = torch.optim.SGD([table, head], lr=0.5)
    record, estimate = make_noise_meter([table, head])
    g = torch.Generator().manual_seed(11)       # the same ids on every rank

    for step in range(STEPS):
        ids = torch.randint(0, ROWS, (BATCH,), generator=g)
        logits = lookup(table, ids, lo, hi) @ head
        loss = F.cross_entropy(logits, ids % 5)
        opt.zero_grad()
        loss.backward()
        dist.all_reduce(head.grad)
        head.grad /= world
        record()
        opt.step()
        if step % 15 == 0:
            noise = estimate()
            if rank == 0:
                print(f"step {step} loss {loss.item():.4f} noise {noise:.3e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
