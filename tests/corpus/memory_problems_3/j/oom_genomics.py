"""Taxonomic classification of sequencing reads."""
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from readlm.batching import ReadDataset, TokenBudgetSampler, collate
from readlm.classifier import ReadClassifier

SETTINGS = dict(n_reads=6000, n_taxa=900, max_tokens=65_536, lr=6e-4, warmup=5, epochs=1, seed=11)


def lr_at(step, base, warmup):
    return base * min(1.0, (step + 1) / warmup)


def train_step(model, optimizer, batch, device):
    reads, lengths, taxa = (t.to(device, non_blocking=True) for t in batch)
    logits = model(reads, lengths)
    loss = F.cross_entropy(logits, taxa, label_smoothing=0.05)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def train(model, dataset, device, settings):
    sampler = TokenBudgetSampler(dataset.lengths, settings["max_tokens"], settings["seed"])
    loader = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings["lr"])
    step, started = 0, time.time()
    for epoch in range(settings["epochs"]):
        for batch in loader:
            for group in optimizer.param_groups:
                group["lr"] = lr_at(step, settings["lr"], settings["warmup"])
            loss = train_step(model, optimizer, batch, device)
            if step % 3 == 0:
                bases = int(batch[1].sum())
                print(f"step {step}: loss {loss.item():.3f}, {len(batch[1])} reads, {bases} bases, "
                      f"{time.time() - started:.1f} s", flush=True)
            step += 1
    return step


@torch.inference_mode()
def classify(model, reads, device):
    model.eval()
    padded, lengths, _ = collate([(read, 0) for read in reads])
    return model(padded.to(device), lengths.to(device)).topk(3).indices.cpu()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(SETTINGS["seed"])
    dataset = ReadDataset(SETTINGS["n_reads"], SETTINGS["n_taxa"], SETTINGS["seed"])
    print(f"{len(dataset)} reads, {dataset.lengths.sum() / 1e6:.2f} Mb", flush=True)
    model = ReadClassifier(SETTINGS["n_taxa"]).to(device)
    steps = train(model, dataset, device, SETTINGS)
    print(f"trained for {steps} steps")
    best = classify(model, [dataset[i][0] for i in range(8)], device)
    print(f"classified {len(best)} reads")


if __name__ == "__main__":
    main()
