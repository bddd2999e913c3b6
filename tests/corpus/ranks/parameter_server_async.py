"""An asynchronous parameter server (rank 0) and its workers, which have different batch sizes."""
import os
from collections import deque

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

STEPS_PER_WORKER = 45


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(80, 320), nn.ReLU(), nn.Linear(320, 160), nn.ReLU(), nn.Linear(160, 4))


def server(world):
    flat = parameters_to_vector(build().parameters()).detach().clone().requires_grad_()
    opt = torch.optim.Adam([flat], lr=1e-3)
    versions = deque(maxlen=6)          # to roll back if an update turns out bad
    inbox = torch.empty_like(flat, requires_grad=False)
    for w in range(1, world):
        dist.send(flat.detach(), dst=w)
    for update in range((world - 1) * STEPS_PER_WORKER):
        src = dist.recv(inbox)
        if inbox.isfinite().all():
            versions.append(flat.detach().clone())
            flat.grad = inbox.clone()
            opt.step()
            opt.zero_grad()
        dist.send(flat.detach(), dst=src)
        if update % 30 == 0:
            drift = (flat.detach() - versions[0]).norm().item()
            print(f"update {update} from {src}, drift {drift:.4f}", flush=True)


def worker(rank):
    model = build()
    params = list(model.parameters())
    gen = torch.Generator().manual_seed(rank)
    batch = 32 * rank
    weights = torch.empty(sum(p.numel() for p in params))
    dist.recv(weights, src=0)
    for _ in range(STEPS_PER_WORKER):
        vector_to_parameters(weights, params)
        x = torch.randn(batch, 80, generator=gen)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        grads = torch.autograd.grad(loss, params)
        dist.send(torch.cat([g.reshape(-1) for g in grads]), dst=0)
        dist.recv(weights, src=0)
    print(f"worker {rank} done, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    if dist.get_rank() == 0:
        server(dist.get_world_size())
    else:
        worker(dist.get_rank())
    dist.barrier()
    dist.destroy_process_group()
