"""Adapts the published phase picker to the records of a volcano observatory."""
import os
import tempfile

import torch
import torch.nn.functional as F

from picker_model import PhasePicker, write_base_checkpoint

SAMPLES = 3072


def records(batch, steps):
    generator = torch.Generator().manual_seed(11)
    for _ in range(steps):
        waveform = torch.randn(batch, 3, SAMPLES, generator=generator)
        onset = torch.randint(200, SAMPLES - 400, (batch,), generator=generator)
        target = torch.zeros(batch, 3, SAMPLES)
        for row, at in enumerate(onset.tolist()):
            target[row, 0, at] = 1.0
            target[row, 1, at + 200] = 1.0
        target[:, 2] = 1.0 - target[:, 0] - target[:, 1]
        yield waveform, target


def load_base(path, device):
    bundle = torch.load(path, map_location=device)
    model = PhasePicker().to(device)
    model.load_state_dict(bundle["model_ema"])
    return model, bundle


def layer_groups(model, lr, decay):
    """A smaller learning rate the nearer a layer is to the input."""
    depth = len(model.encoder.layers)
    groups = [{"params": list(model.embed.parameters()), "lr": lr * decay ** (depth + 1)}]
    for number, layer in enumerate(model.encoder.layers):
        groups.append({"params": list(layer.parameters()), "lr": lr * decay ** (depth - number)})
    groups.append({"params": list(model.pick.parameters()), "lr": lr})
    return groups


def pick_loss(logits, target):
    return -(target * F.log_softmax(logits, dim=1)).sum(dim=1).mean()


def adapt(model, steps, batch, device):
    optimizer = torch.optim.AdamW(layer_groups(model, 1e-4, 0.8), weight_decay=0.05)
    smoothed = None
    model.train()
    for step, (waveform, target) in enumerate(records(batch, steps)):
        loss = pick_loss(model(waveform.to(device)), target.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        value = loss.item()
        smoothed = value if smoothed is None else 0.9 * smoothed + 0.1 * value
        if step % 10 == 0:
            print(f"step {step} loss {smoothed:.4f}", flush=True)
    return smoothed


def main():
    device = torch.device("cuda")
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "picker_base.pt")
    write_base_checkpoint(path)
    try:
        model, bundle = load_base(path, device)
        print(f"base model of step {bundle['step']}, {sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
        loss = adapt(model, steps=40, batch=16, device=device)
    finally:
        os.remove(path)
    torch.save({"model": model.state_dict(), "base_step": bundle["step"], "loss": loss}, os.path.join(folder, "out.pt"))


if __name__ == "__main__":
    main()
