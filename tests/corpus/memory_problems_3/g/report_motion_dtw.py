"""Sequence-to-sequence motion prediction for motion capture, trained with the soft-DTW loss."""
import argparse
import time

import torch
import torch.nn as nn


class SoftDTW(nn.Module):
    """Differentiable alignment cost, evaluated one anti-diagonal at a time."""

    def __init__(self, gamma=0.1, bandwidth=None):
        super().__init__()
        self.gamma = gamma
        self.bandwidth = bandwidth
        self.dist_func = self._euclidean_dist_func

    @staticmethod
    def _euclidean_dist_func(x, y):
        n, m, d = x.size(1), y.size(1), x.size(2)
        x = x.unsqueeze(2).expand(-1, n, m, d)
        y = y.unsqueeze(1).expand(-1, n, m, d)
        return torch.pow(x - y, 2).sum(3)

    def _softmin(self, a, b, c):
        stacked = torch.stack([a, b, c], dim=-1)
        return -self.gamma * torch.logsumexp(-stacked / self.gamma, dim=-1)

    def forward(self, x, y):
        cost = self.dist_func(x, y)
        batch, n, m = cost.shape
        diagonals = self._skew(cost)
        inf = cost.new_full((batch, 1), 1e8)
        prev2 = cost.new_full((batch, n + 1), 1e8)
        prev2[:, 0] = 0
        prev1 = cost.new_full((batch, n + 1), 1e8)
        for k in range(n + m - 1):
            best = self._softmin(prev1[:, :-1], prev2[:, :-1], prev1[:, 1:])
            current = torch.cat([inf, diagonals[:, k] + best], dim=1)
            prev2, prev1 = prev1, current
        return prev1[:, -1]

    @staticmethod
    def _skew(cost):
        """Row i is shifted by i, so that column k has the k-th anti-diagonal."""
        batch, n, m = cost.shape
        padded = nn.functional.pad(cost, (0, n), value=1e8)
        flat = padded.reshape(batch, -1)[:, : n * (n + m - 1)]
        return flat.view(batch, n, n + m - 1).transpose(1, 2)


class MotionPredictor(nn.Module):
    def __init__(self, channels, hidden=128, horizon=48):
        super().__init__()
        self.horizon = horizon
        self.encoder = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.mix = nn.Linear(48, horizon)
        self.decoder = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, channels))

    def forward(self, past):
        h = self.encoder(past)
        h = self.mix(h.transpose(1, 2)).transpose(1, 2)
        return past[:, -1:] + self.decoder(h)


def clips(n_batches, batch_size, frames, channels):
    gen = torch.Generator().manual_seed(3)
    for _ in range(n_batches):
        velocity = torch.randn(batch_size, 2 * frames, channels, generator=gen)
        yield velocity.cumsum(1).mul_(0.02).split(frames, dim=1)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--joints", type=int, default=31)
    ap.add_argument("--frames", type=int, default=48)
    ap.add_argument("--batch", type=int, default=160)
    ap.add_argument("--steps", type=int, default=64)
    args = ap.parse_args()

    channels = 3 * args.joints
    model = MotionPredictor(channels, horizon=args.frames).cuda()
    criterion = SoftDTW(gamma=0.1)
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)

    t0 = time.time()
    for step, (past, future) in enumerate(clips(args.steps, args.batch, args.frames, channels)):
        past, future = past.cuda(), future.cuda()
        loss = criterion(model(past), future).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        if step % 16 == 0:
            print(f"step {step:4d}  soft-dtw {loss.item():10.3f}  {time.time() - t0:5.1f}s")


if __name__ == "__main__":
    main()
