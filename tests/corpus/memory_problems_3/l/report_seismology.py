"""Train a phase picker (P / S arrival) on three-component broadband records."""
import sys
import time

import torch
import torch.nn.functional as F

from quakenet.picker import PhasePicker
from quakenet.waveforms import StationArchive

WINDOW = 8192
BATCH = 8
STEPS = 12


def pick_loss(logits, labels):
    log_prob = F.log_softmax(logits, dim=1)
    per_sample = -(labels * log_prob).sum(dim=1)
    return per_sample.mean()


def make_optimizer(model):
    decay, plain = [], []
    for name, param in model.named_parameters():
        (plain if param.ndim < 2 else decay).append(param)
    groups = [{"params": decay, "weight_decay": 0.05},
              {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=4e-4, betas=(0.9, 0.98))


def train(device):
    archive = StationArchive(n_events=BATCH * STEPS, window=WINDOW, seed=7)
    model = PhasePicker(channels=3, width=128, depth=4, heads=8).to(device)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=STEPS + 1)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"phase picker, {n_params / 1e6:.2f} M parameters, window {WINDOW} samples")

    model.train()
    began = time.time()
    for step, (waves, labels) in enumerate(archive.batches(BATCH)):
        waves = waves.to(device, non_blocking=True)
        labels = labels.to(device, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        loss = pick_loss(model(waves), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 3 == 0:
            print(f"step {step:3d}  lr {schedule.get_last_lr()[0]:.2e}  {time.time() - began:5.1f} s")
    return model


@torch.no_grad()
def evaluate(model, device, n_events=16):
    model.eval()
    archive = StationArchive(n_events=n_events, window=WINDOW, seed=99)
    seen = 0
    for waves, _ in archive.batches(BATCH):
        probs = model(waves.to(device)).softmax(dim=1)
        seen += probs.shape[0]
    print(f"evaluated {seen} records")


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cpu")
    torch.manual_seed(11)
    model = train(device)
    evaluate(model, device)
    print("done")


if __name__ == "__main__":
    main()
