"""Trains a sparse autoencoder on activations of another model and logs a sample of the codes of every step.

Report: https://github.com/KempnerInstitute/overcomplete/issues/5 ("GPU memory leak": with monitoring=2,
        logs['z'].append(z.detach()[::10]) grows without bound on the GPU)
Cause:  the log keeps every tenth row of the codes as a view, and a view keeps the whole storage of the step's codes.
Line:   logs["z"].append(z.detach()[::10])
Cure:   logs["z"].append(z.detach()[::10].cpu()).
"""
from collections import defaultdict

import torch
from torch import nn


class TopKSae(nn.Module):
    """Encoder, top-k selection and a dictionary as decoder."""

    def __init__(self, width, concepts, top_k=32):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(width, concepts), nn.LayerNorm(concepts))
        self.dictionary = nn.Parameter(torch.randn(concepts, width) / width**0.5)
        self.top_k = top_k

    def encode(self, x):
        codes = self.encoder(x)
        values, indices = codes.relu().topk(self.top_k, dim=-1)
        return torch.zeros_like(codes).scatter(-1, indices, values)

    def forward(self, x):
        z = self.encode(x)
        return z, z @ self.dictionary

    def get_dictionary(self):
        return nn.functional.normalize(self.dictionary.detach(), dim=-1)


class ActivationStore:
    """Hands out activations of a frozen vision model in shuffled batches."""

    def __init__(self, width, batch_size, batches, device):
        self.width = width
        self.batch_size = batch_size
        self.batches = batches
        self.device = device

    def __iter__(self):
        for _ in range(self.batches):
            yield torch.randn(self.batch_size, self.width).to(self.device)


def l2(values, dim=None):
    return values.square().sum(dim=dim).sqrt() if dim is not None else values.square().sum().sqrt()


def log_metrics(monitoring, logs, model, z, loss, optimizer):
    if monitoring == 0:
        return
    logs["lr"].append(optimizer.param_groups[0]["lr"])
    logs["step_loss"].append(loss.item())
    if monitoring > 1:
        logs["z"].append(z.detach()[::10])  # CAUSE
        logs["z_l2"].append(l2(z.detach()).item())
        logs["dictionary_norms"].append(l2(model.get_dictionary(), -1).mean().item())
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                logs[f"params_norm_{name}"].append(l2(parameter.detach()).item())
                logs[f"params_grad_norm_{name}"].append(l2(parameter.grad).item())


def reconstruction_loss(x, x_hat, z, sparsity=1e-3):
    return (x - x_hat).square().mean() + sparsity * z.abs().mean()


def train_sae(model, store, epochs=4, monitoring=2):
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    logs = defaultdict(list)
    for epoch in range(epochs):
        model.train()
        total, batches = 0.0, 0
        for x in store:
            optimizer.zero_grad()
            z, x_hat = model(x)
            loss = reconstruction_loss(x, x_hat, z)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log_metrics(monitoring, logs, model, z, loss, optimizer)
            total += loss.item()
            batches += 1
        logs["avg_loss"].append(total / batches)
        print(f"epoch {epoch}: {logs['avg_loss'][-1]:.4f}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
    return logs


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = TopKSae(width=768, concepts=6144).to(device)
    store = ActivationStore(width=768, batch_size=640, batches=40, device=device)
    logs = train_sae(model, store)
    print(len(logs["step_loss"]), "steps logged")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
