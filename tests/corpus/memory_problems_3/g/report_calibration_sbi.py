"""Simulation-based calibration of a neural posterior for a compartment model of an epidemic."""
import argparse
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class BoxUniform:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def sample(self, n):
        return self.low + (self.high - self.low) * torch.rand(n, len(self.low))

    def within_support(self, theta):
        low, high = self.low.to(theta.device), self.high.to(theta.device)
        return ((theta >= low) & (theta <= high)).all(-1)


def simulate(theta, days=40):
    """Deterministic SIR with noisy counts, on the host."""
    beta, gamma, i0, noise = theta.unbind(-1)
    s, i = 1 - i0 * 0.01, i0 * 0.01
    curve = []
    for _ in range(days):
        new = beta * s * i
        s, i = s - new, i + new - gamma * i
        curve.append(new)
    curve = torch.stack(curve, -1)
    return curve * (1 + noise[:, None] * torch.randn_like(curve))


class CouplingLayer(nn.Module):
    def __init__(self, dim, context, hidden, flip):
        super().__init__()
        self.flip = flip
        self.half = dim // 2
        self.net = nn.Sequential(nn.Linear(self.half + context, hidden), nn.ReLU(),
                                 nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2 * (dim - self.half)))

    def _params(self, a, context):
        shift, log_scale = self.net(torch.cat([a, context], -1)).chunk(2, -1)
        return shift, 2 * torch.tanh(log_scale / 2)

    def forward(self, theta, context):
        a, b = theta.split([self.half, theta.shape[-1] - self.half], -1)
        if self.flip:
            a, b = b, a
        shift, log_scale = self._params(a, context)
        b = (b - shift) * torch.exp(-log_scale)
        return torch.cat([b, a] if self.flip else [a, b], -1), -log_scale.sum(-1)

    def inverse(self, z, context):
        a, b = z.split([self.half, z.shape[-1] - self.half], -1)
        if self.flip:
            a, b = b, a
        shift, log_scale = self._params(a, context)
        b = b * torch.exp(log_scale) + shift
        return torch.cat([b, a] if self.flip else [a, b], -1)


class Flow(nn.Module):
    def __init__(self, dim=4, x_dim=40, context=16, hidden=48, layers=4):
        super().__init__()
        self.dim = dim
        self.embedding = nn.Sequential(nn.Linear(x_dim, 64), nn.ReLU(), nn.Linear(64, context))
        self.layers = nn.ModuleList(CouplingLayer(dim, context, hidden, k % 2 == 1) for k in range(layers))

    def log_prob(self, theta, x):
        context, total = self.embedding(x), 0
        for layer in self.layers:
            theta, logdet = layer(theta, context)
            total = total + logdet
        return total - 0.5 * theta.pow(2).sum(-1) - 0.5 * self.dim * math.log(2 * math.pi)

    def sample(self, n, x):
        context = self.embedding(x).expand(n, -1, -1)
        z = torch.randn(n, x.shape[0], self.dim, device=x.device)
        for layer in reversed(self.layers):
            z = layer.inverse(z, context)
        return z


class DirectPosterior:
    def __init__(self, flow, prior):
        self.flow, self.prior = flow, prior

    @torch.no_grad()
    def sample_batched(self, num_samples, x, max_sampling_batch_size=10_000):
        """Draw candidates for all x at once and keep the first ones inside the prior."""
        candidates = self.flow.sample(max_sampling_batch_size, x)
        inside = self.prior.within_support(candidates)
        order = inside.float().topk(num_samples, dim=0).indices.clamp(0, max_sampling_batch_size - 1)
        return candidates.gather(0, order[..., None].expand(-1, -1, candidates.shape[-1]))


def train(flow, prior, device, steps, batch=256):
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    for step in range(steps):
        theta = prior.sample(batch)
        x = simulate(theta)
        loss = -flow.log_prob(theta.to(device), x.to(device)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--train-steps", type=int, default=120)
    ap.add_argument("--sbc-batches", type=int, default=60)
    ap.add_argument("--observations", type=int, default=128)
    ap.add_argument("--posterior-samples", type=int, default=100)
    args = ap.parse_args()
    torch.manual_seed(1)
    device = "cuda"

    prior = BoxUniform(torch.tensor([0.1, 0.05, 0.1, 0.01]), torch.tensor([0.8, 0.4, 2.0, 0.3]))
    flow = Flow().to(device)
    train(flow, prior, device, args.train_steps)

    posterior = DirectPosterior(flow, prior)
    ranks = []
    for k in range(args.sbc_batches):
        theta = prior.sample(args.observations)
        x = simulate(theta).to(device)
        draws = posterior.sample_batched(args.posterior_samples, x).cpu()
        ranks.append((draws < theta).sum(0).numpy())
        if k % 20 == 0:
            print(f"batch {k}: {draws.shape[0]} draws for {draws.shape[1]} observations")
    ranks = np.concatenate(ranks)
    print("rank histogram of beta:", np.histogram(ranks[:, 0], bins=10, range=(0, args.posterior_samples))[0])


if __name__ == "__main__":
    main()
