"""Train the plankton detector on frames of the flow camera."""
import sys

import torch

from plankton.detector import Detector, detection_loss, random_target

SIZE, BATCH, STEPS, STRIDE = 320, 12, 10, 8


def frames(generator):
    for _ in range(STEPS):
        yield torch.rand(BATCH, 1, SIZE, SIZE, generator=generator), random_target(generator, BATCH, SIZE // STRIDE)


def parameter_groups(model, decay=5e-4):
    plain = [p for name, p in model.named_parameters() if p.ndim == 1]
    decayed = [p for name, p in model.named_parameters() if p.ndim > 1]
    return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def warmup(step, steps=5):
    return min(1.0, (step + 1) / steps)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(29)
    generator = torch.Generator().manual_seed(29)
    model = Detector().to(device)
    optimizer = torch.optim.SGD(parameter_groups(model), lr=0.01, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup)
    count = sum(p.numel() for p in model.parameters())
    print(f"detector with {count / 1e6:.2f} M parameters, frames of {SIZE} x {SIZE}, batch {BATCH}")

    for step, (images, target) in enumerate(frames(generator), start=1):
        target = {name: value.to(device) for name, value in target.items()}
        loss = detection_loss(model(images.to(device)), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 5 == 0:
            peak = torch.cuda.max_memory_allocated(device) / 2**20
            print(f"step {step}: loss {loss.item():.3f}, peak {peak:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
