"""Differentially private fine-tuning (DP-SGD) of a text classifier with torch.func."""
import math
import sys

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

VOCAB, DIM, LAYERS, HEADS, LENGTH, CLASSES = 30522, 512, 6, 8, 128, 4
BATCH_SIZE = 96
STEPS = 8
MAX_GRAD_NORM = 1.0
NOISE_MULTIPLIER = 0.8


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d // HEADS), dim=-1)
        x = x + self.proj((weights @ v).transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(torch.zeros(LENGTH, DIM))
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, tokens):
        x = self.layers(self.embed(tokens) + self.pos)
        return self.head(self.norm(x[:, 0]))


class DPTrainer:
    def __init__(self, model, lr=0.5):
        self.model = model
        self.lr = lr
        self.params = {k: v.detach() for k, v in model.named_parameters()}
        self.sample_grads = vmap(grad_and_value(self.sample_loss), in_dims=(None, 0, 0))

    def sample_loss(self, params, tokens, label):
        logits = functional_call(self.model, params, (tokens.unsqueeze(0),))
        return F.cross_entropy(logits, label.unsqueeze(0))

    def clipped_sum(self, tokens, labels):
        grads, losses = self.sample_grads(self.params, tokens, labels)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()], dim=1).norm(dim=1)
        factor = (MAX_GRAD_NORM / (norms + 1e-6)).clamp(max=1.0)
        summed = {k: torch.einsum("b,b...->...", factor, g) for k, g in grads.items()}
        return summed, losses.sum()

    @torch.no_grad()
    def step(self, tokens, labels):
        summed, loss = self.clipped_sum(tokens, labels)
        for name, param in self.params.items():
            noise = torch.randn_like(param) * (NOISE_MULTIPLIER * MAX_GRAD_NORM)
            param.sub_((summed[name] + noise) / len(labels), alpha=self.lr)
        return loss / len(labels)

    @torch.no_grad()
    def evaluate(self, tokens, labels):
        predictions = functional_call(self.model, self.params, (tokens,)).argmax(-1)
        return (predictions == labels).float().mean()


def poisson_like_batches(steps, device):
    for _ in range(steps):
        tokens = torch.randint(0, VOCAB, (BATCH_SIZE, LENGTH), device=device)
        labels = torch.randint(0, CLASSES, (BATCH_SIZE,), device=device)
        yield tokens, labels


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    with device:
        model = Classifier()
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.1f}M parameters")
    trainer = DPTrainer(model)
    tokens, labels = next(poisson_like_batches(1, device))
    print(f"accuracy before: {trainer.evaluate(tokens, labels).item():.3f}", flush=True)
    for step, (tokens, labels) in enumerate(poisson_like_batches(STEPS, device)):
        loss = trainer.step(tokens, labels)
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"accuracy after: {trainer.evaluate(tokens, labels).item():.3f}")


if __name__ == "__main__":
    main()
