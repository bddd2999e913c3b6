"""Unpaired stain transfer (H&E <-> IHC) with gradient-normalised critics.

The patch sets are small, so both are put on the device once and indexed from
there; an epoch walks through all batches of both domains.

    python report_unpaired_stain.py cuda
"""
import itertools
import sys

import torch
import torch.nn.functional as F

from report_unpaired_stain_pkg.gradnorm import normalize_gradient
from report_unpaired_stain_pkg.networks import Discriminator, Generator

PATCH = 192
BATCH = 16


class PatchSet:
    """All patches of one stain, already batched and resident on the device."""

    def __init__(self, batches, device, seed):
        generator = torch.Generator().manual_seed(seed)
        raw = torch.randint(0, 256, (BATCH, 3, PATCH, PATCH), generator=generator, dtype=torch.uint8)
        self.data = []
        for number in range(batches):
            patch = raw.roll(number, dims=0).to(device)
            self.data.append(patch.float().div_(127.5).sub_(1.0))

    def __len__(self):
        return len(self.data)

    def __iter__(self):
        for index in torch.randperm(len(self.data)).tolist():
            yield self.data[index]


def freeze(nets, frozen):
    for parameter in itertools.chain(*(net.parameters() for net in nets)):
        parameter.requires_grad_(not frozen)


class StainTransfer:
    def __init__(self, device):
        self.g_ab, self.g_ba = Generator().to(device), Generator().to(device)
        self.d_a, self.d_b = Discriminator().to(device), Discriminator().to(device)
        self.opt_g = torch.optim.Adam(
            itertools.chain(self.g_ab.parameters(), self.g_ba.parameters()), lr=2e-4, betas=(0.0, 0.9)
        )
        self.opt_d = torch.optim.Adam(
            itertools.chain(self.d_a.parameters(), self.d_b.parameters()), lr=4e-4, betas=(0.0, 0.9)
        )

    def step_generators(self, real_a, real_b):
        freeze([self.d_a, self.d_b], True)
        self.opt_g.zero_grad()
        fake_b, fake_a = self.g_ab(real_a), self.g_ba(real_b)
        loss = -self.d_b(fake_b).mean() - self.d_a(fake_a).mean()
        loss = loss + 10.0 * F.l1_loss(self.g_ba(fake_b), real_a)
        loss = loss + 10.0 * F.l1_loss(self.g_ab(fake_a), real_b)
        loss.backward()
        self.opt_g.step()
        freeze([self.d_a, self.d_b], False)
        return fake_a.detach(), fake_b.detach(), loss.detach()

    def step_critics(self, real_a, real_b, fake_a, fake_b):
        self.opt_d.zero_grad()
        total = 0.0
        for critic, real, fake in ((self.d_a, real_a, fake_a), (self.d_b, real_b, fake_b)):
            pred_real = normalize_gradient(critic, real)
            pred_fake = normalize_gradient(critic, fake)
            loss = pred_fake.mean() - pred_real.mean()
            loss.backward()
            total = total + loss.detach()
        self.opt_d.step()
        return total


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    he = PatchSet(30, device, seed=1)
    ihc = PatchSet(30, device, seed=2)
    model = StainTransfer(device)

    for step, (real_a, real_b) in enumerate(zip(he, ihc)):
        fake_a, fake_b, loss_g = model.step_generators(real_a, real_b)
        loss_d = model.step_critics(real_a, real_b, fake_a, fake_b)
        if step % 5 == 0:
            print(f"step {step:3d}  G {loss_g.item():.3f}  D {loss_d.item():.3f}")


if __name__ == "__main__":
    main()
