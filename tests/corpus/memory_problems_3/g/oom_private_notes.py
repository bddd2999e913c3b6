"""Differentially private training of a code classifier for clinical notes (DP-SGD)."""
import argparse
import logging
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("dp-notes")


class NoteClassifier(nn.Module):
    def __init__(self, vocab=8000, dim=256, hidden=1024, codes=900):
        super().__init__()
        self.embed = nn.Linear(vocab, dim, bias=False)
        self.body = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(),
                                  nn.Linear(hidden, hidden), nn.GELU())
        self.head = nn.Linear(hidden, codes)

    def forward(self, counts):
        return self.head(self.body(self.embed(torch.log1p(counts))))


class PoissonSampler:
    """Each note takes part in a step independently, as the privacy analysis requires."""

    def __init__(self, notes, seed=0):
        self.notes = notes
        self.gen = torch.Generator().manual_seed(seed)

    def __call__(self, rate):
        return torch.nonzero(torch.rand(self.notes, generator=self.gen) < rate).flatten()


class NoteStore:
    def __init__(self, vocab=8000, codes=900):
        self.vocab, self.codes = vocab, codes

    def fetch(self, ids):
        counts = torch.zeros(len(ids), self.vocab)
        words = (ids[:, None] * 7919 + torch.arange(120) * 104729) % self.vocab
        counts.scatter_add_(1, words, torch.ones(words.shape))
        labels = (ids * 31) % self.codes
        return counts, labels


class GradSampleModule:
    """Records the input and the output gradient of each layer, from which per-sample gradients follow."""

    def __init__(self, model):
        self.layers = {n: m for n, m in model.named_modules() if isinstance(m, (nn.Linear, nn.LayerNorm))}
        self.inputs, self.backprops = {}, {}
        for name, layer in self.layers.items():
            layer.register_forward_hook(lambda m, args, out, name=name: self.inputs.update({name: args[0].detach()}))
            layer.register_full_backward_hook(lambda m, gin, gout, name=name: self.backprops.update({name: gout[0].detach()}))

    def grad_samples(self):
        samples = {}
        for name, layer in self.layers.items():
            x, g = self.inputs.pop(name), self.backprops.pop(name)
            if isinstance(layer, nn.Linear):
                samples[layer.weight] = torch.einsum("no,ni->noi", g, x)
            else:
                samples[layer.weight] = g * F.layer_norm(x, layer.normalized_shape)
            if layer.bias is not None:
                samples[layer.bias] = g
        return samples


class DPOptimizer:
    def __init__(self, model, lr, clip, noise):
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.recorder = GradSampleModule(model)
        self.clip, self.noise = clip, noise

    def step(self, expected_batch):
        self.optimizer.zero_grad()
        samples = self.recorder.grad_samples()
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in samples.values()], 1).norm(dim=1)
        factor = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        for p, g in samples.items():
            total = torch.einsum("n,n...->...", factor, g)
            p.grad = (total + self.noise * self.clip * torch.randn_like(total)) / expected_batch
        self.optimizer.step()


def epsilon(mu_squared, delta=1e-5):
    """Rough estimate from the central limit theorem."""
    return math.sqrt(mu_squared) * math.sqrt(2 * math.log(1 / delta)) + mu_squared / 2


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--notes", type=int, default=60_000)
    ap.add_argument("--expected-batch", type=int, nargs="+", default=[256, 384, 768])
    ap.add_argument("--steps", type=int, default=120)
    ap.add_argument("--noise", type=float, default=1.1)
    ap.add_argument("--clip", type=float, default=1.0)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)

    model = NoteClassifier().cuda()
    sampler = PoissonSampler(args.notes)
    store = NoteStore()
    optimizer = DPOptimizer(model, 0.5, args.clip, args.noise)
    mu_squared = 0.0
    for step in range(args.steps):
        expected = args.expected_batch[step * len(args.expected_batch) // args.steps]
        rate = expected / args.notes
        counts, labels = store.fetch(sampler(rate))
        loss = F.cross_entropy(model(counts.cuda()), labels.cuda(), reduction="sum")
        loss.backward()
        optimizer.step(expected)
        mu_squared += rate ** 2 * (math.exp(1 / args.noise ** 2) - 1)
        if step % 20 == 0:
            log.info("step %d batch %d epsilon %.2f", step, len(labels), epsilon(mu_squared))


if __name__ == "__main__":
    main()
