"""Masked patch pretraining which can be stopped and resumed from its run folder."""
import tempfile

import torch
from torch import nn

from pretrain.network import MixerAutoencoder
from pretrain.state import RunState, save


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95), weight_decay=0.05)


def first_run(folder):
    """A short run on the CPU, only to have a file to go on from."""
    model = MixerAutoencoder()
    optimizer = make_optimizer(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    save(f"{folder}/last.pt", model, optimizer, step=1000)


class PretrainLoop:
    def __init__(self, folder, device, batch_size=8, mask_ratio=0.6):
        self.device = device
        self.batch_size = batch_size
        self.mask_ratio = mask_ratio
        self.model = MixerAutoencoder().to(device)
        self.optimizer = make_optimizer(self.model)
        self.state = RunState(folder, device)

    def resume(self):
        step = self.state.read().apply(self.model, self.optimizer)
        print(f"resumed at step {step}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
        return step

    def batch(self):
        patches = torch.empty(self.batch_size, 196, 768).uniform_()
        keep = (torch.rand(self.batch_size, 196, 1) > self.mask_ratio).float()
        return patches.to(self.device), keep.to(self.device)

    def step(self):
        patches, keep = self.batch()
        reconstructed = self.model(patches * keep)
        loss = (nn.functional.mse_loss(reconstructed, patches, reduction="none") * (1 - keep)).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def run(self, steps):
        start = self.resume()
        for step in range(start, start + steps):
            loss = self.step()
            if step % 10 == 0:
                print(f"step {step}: loss {loss:.4f} ({step - self.state.step} since resume)")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        first_run(folder)
        PretrainLoop(folder, torch.device("cuda")).run(steps=30)
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
