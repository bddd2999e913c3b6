"""Train a denoiser on pairs of low-dose and full-dose CT slices."""
import sys

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from lowdose.net import Denoiser
from lowdose.quality import QualityMeter


class SlicePairs(Dataset):
    def __init__(self, count, size=384):
        generator = torch.Generator().manual_seed(3)
        self.clean = torch.rand(count, 1, size, size, generator=generator)
        self.noise = torch.randn(count, 1, size, size, generator=generator)

    def __len__(self):
        return len(self.clean)

    def __getitem__(self, index):
        clean = self.clean[index]
        return clean + 0.05 * self.noise[index], clean


class Trainer:
    def __init__(self, device):
        self.device = device
        self.model = Denoiser().to(device)
        self.quality = QualityMeter().to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-4)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.5)

    def step(self, low, full):
        low, full = low.to(self.device), full.to(self.device)
        output = self.model(low)
        loss = F.l1_loss(output, full)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.quality.update(output, full)
        return loss.detach()

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            losses = [self.step(low, full) for low, full in loader]
            self.schedule.step()
            mean = torch.stack(losses).mean().item()
            used = torch.cuda.memory_allocated(self.device) / 2**20
            print(f"epoch {epoch + 1}: l1 {mean:.4f}, device memory {used:.0f} MiB", flush=True)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(3)
    loader = DataLoader(SlicePairs(48), batch_size=8, shuffle=True, drop_last=True)
    trainer = Trainer(device)
    trainer.fit(loader, epochs=5)
    result = trainer.quality.compute()
    print("quality over the run: " + ", ".join(f"{k} {v:.3f}" for k, v in result.items()))


if __name__ == "__main__":
    main()
