"""Claim frequency model for a motor portfolio (Poisson deviance, exposure weighted)."""
import sys
import time

import torch

from claimsnet.data import CATEGORICAL, NUMERIC, PolicyTable, load_portfolio
from claimsnet.losses import weighted_deviance
from claimsnet.model import FrequencyNet

SEED = 11
N_POLICIES = 180_000
BATCH = 4096
EPOCHS = 1


def split(frame, holdout=0.25):
    shuffled = frame.sample(frac=1.0, random_state=SEED).reset_index(drop=True)
    cut = int(len(shuffled) * (1 - holdout))
    return PolicyTable(shuffled[:cut]), PolicyTable(shuffled[cut:])


def train_epoch(model, optimizer, table, device, generator):
    model.train()
    history = []
    for numeric, codes, claims, exposure in table.batches(BATCH, device, generator):
        loss = weighted_deviance(model(numeric, codes), claims, exposure)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        history.append(loss.detach())
    return torch.stack(history).mean().item()


@torch.no_grad()
def evaluate(model, table, device):
    model.eval()
    everything = torch.arange(len(table))
    numeric, codes, claims, exposure = table.select(everything, device)
    log_rate = model(numeric, codes)
    deviance = weighted_deviance(log_rate, claims, exposure)
    predicted = (log_rate.exp() * exposure.squeeze(-1)).sum()
    return deviance.item(), (predicted / claims.sum().clamp(min=1)).item()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    train_table, holdout_table = split(load_portfolio(N_POLICIES, SEED))
    print(f"policies: {len(train_table)} train, {len(holdout_table)} holdout", flush=True)

    model = FrequencyNet(len(NUMERIC), list(CATEGORICAL.values())).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    for epoch in range(EPOCHS):
        started = time.time()
        train_loss = train_epoch(model, optimizer, train_table, device, generator)
        print(f"epoch {epoch}: train deviance {train_loss:.4f} ({time.time() - started:.1f} s)", flush=True)
        deviance, balance = evaluate(model, holdout_table, device)
        print(f"epoch {epoch}: holdout deviance {deviance:.4f}, balance {balance:.3f}", flush=True)
    print("finished")


if __name__ == "__main__":
    main()
