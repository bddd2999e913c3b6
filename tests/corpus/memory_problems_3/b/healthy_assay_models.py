"""Activity of molecules in many assays, trained on the stream of a screening lab."""
import random

import torch
import torch.nn.functional as F

from assay_heads import MultiAssay

ASSAYS = [f"assay_{number:02d}" for number in range(36)]


def screening_batches(steps, batch, seed):
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        known = 3 + step // 6
        assay = rng.choice(ASSAYS[:known])
        atoms = torch.randint(0, 64, (batch, 40), generator=generator)
        bonds = (torch.rand(batch, 40, 40, generator=generator) < 0.05).float()
        yield assay, atoms, bonds, torch.rand(batch, generator=generator)


class ScreeningRun:
    def __init__(self, device, lr=3e-4):
        self.device = device
        self.model = MultiAssay().to(device)
        self.optimizer = torch.optim.AdamW(self.model.encoder.parameters(), lr=lr)
        self.lr = lr
        self.losses = {}

    def step(self, assay, atoms, bonds, activity):
        predicted, fresh = self.model(assay, atoms.to(self.device), bonds.to(self.device))
        if fresh:
            self.optimizer.add_param_group({"params": self.model.heads[assay].parameters(), "lr": 3 * self.lr})
        loss = F.mse_loss(predicted, activity.to(self.device))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.losses[assay] = loss.item()

    def report(self, step):
        mean = sum(self.losses.values()) / len(self.losses)
        print(f"step {step}: {len(self.model.heads)} assays, loss {mean:.4f}, "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB", flush=True)


def main():
    torch.manual_seed(0)
    run = ScreeningRun(torch.device("cuda"))
    for step, (assay, atoms, bonds, activity) in enumerate(screening_batches(320, 64, seed=0), 1):
        run.step(assay, atoms, bonds, activity)
        if step % 40 == 0:
            run.report(step)


if __name__ == "__main__":
    main()
