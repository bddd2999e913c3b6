"""How well does a pretrained activity model adapt to new assays with a handful of measurements?"""
import copy
import sys
import time

import torch
import torch.nn.functional as F

from assaylab.encoder import FingerprintNet
from assaylab.tasks import assay_stream


def pretrain(model, device, steps=6):
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4)
    for task in assay_stream(steps, device, seed=100):
        bits, desc, labels = task.query
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(bits, desc).float(), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return loss.item()


def adapt(model, support, steps, lr):
    learner = copy.deepcopy(model)
    learner.train()
    opt = torch.optim.SGD(learner.parameters(), lr=lr)
    bits, desc, labels = support
    for _ in range(steps):
        loss = F.cross_entropy(learner(bits, desc).float(), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
    return learner.eval()


@torch.no_grad()
def score(learner, query):
    bits, desc, labels = query
    logits = learner(bits, desc).float()
    prob = logits.softmax(-1)[:, 1]
    hit = (logits.argmax(-1) == labels).float().mean()
    brier = ((prob - labels.float()) ** 2).mean()
    return hit.item(), brier.item()


def benchmark(model, device, n_tasks, steps=5, lr=1e-2):
    rows = []
    with torch.autocast(device.type, dtype=torch.bfloat16):
        for i, task in enumerate(assay_stream(n_tasks, device)):
            learner = adapt(model, task.support, steps, lr)
            acc, brier = score(learner, task.query)
            rows.append((task.name, acc, brier))
            if i % 4 == 3:
                used = torch.cuda.memory_allocated(device) / 2**20
                print(f"  {i + 1:3d} assays  acc {acc:.3f}  brier {brier:.3f}  memory {used:.0f} MiB", flush=True)
    return rows


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = FingerprintNet().to(device)
    n_params = sum(p.numel() for p in model.parameters())
    print(f"model: {n_params / 1e6:.1f} M parameters")
    print(f"pretraining loss {pretrain(model, device):.4f}")
    model.requires_grad_(True)
    start = time.time()
    rows = benchmark(model, device, n_tasks=20)
    mean_acc = sum(r[1] for r in rows) / len(rows)
    mean_brier = sum(r[2] for r in rows) / len(rows)
    print(f"{len(rows)} assays in {time.time() - start:.1f} s: accuracy {mean_acc:.3f}, brier {mean_brier:.3f}")


if __name__ == "__main__":
    main()
