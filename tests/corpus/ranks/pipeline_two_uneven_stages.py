"""A pipeline of two stages with microbatches (all forwards, then all backwards)."""
import os

import torch
import torch.distributed as dist
from torch import nn

MICRO, MB, WIDTH, STEPS = 4, 32, 192, 70


def first_stage():
    return nn.Sequential(nn.Linear(48, WIDTH), nn.ReLU())


def second_stage():
    layers = []
    for _ in range(5):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 6))


def run_first(stage, opt, gen):
    stash = []
    for _ in range(MICRO):
        x = torch.randn(MB, 48, generator=gen)
        y = x[:, :6].argmax(dim=1)
        out = stage(x)
        dist.send(out.detach(), dst=1)
        dist.send(y, dst=1)
        stash.append(out)
    for out in reversed(stash):
        grad = torch.empty_like(out)
        dist.recv(grad, src=1)
        out.backward(grad)
    opt.step()
    opt.zero_grad()


def run_second(stage, opt):
    losses, inputs = [], []
    for _ in range(MICRO):
        x = torch.empty(MB, WIDTH)
        y = torch.empty(MB, dtype=torch.int64)
        dist.recv(x, src=0)
        dist.recv(y, src=0)
        x.requires_grad_()
        losses.append(nn.functional.cross_entropy(stage(x), y) / MICRO)
        inputs.append(x)
    total = sum(l.item() for l in losses)
    while losses:
        losses.pop().backward()
        dist.send(inputs.pop().grad, dst=0)
    opt.step()
    opt.zero_grad()
    return total


def main():
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    stage = first_stage() if rank == 0 else second_stage()
    opt = torch.optim.Adam(stage.parameters(), lr=1e-3)
    gen = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        if rank == 0:
            run_first(stage, opt, gen)
        else:
            total = run_second(stage, opt)
            if step % 10 == 0:
                print(f"step {step} loss {total:.4f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
