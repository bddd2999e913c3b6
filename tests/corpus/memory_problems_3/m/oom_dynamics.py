"""Latent dynamics model of a quadruped, trained on teleoperation logs."""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.parametrizations import weight_norm

OBS, ACT, HIDDEN = 96, 12, 1536
HORIZON, BATCH = 160, 24


class GatedCell(nn.Module):
    """GRU cell with normalised weights, which keeps long roll-outs from blowing up."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.from_input = weight_norm(nn.Linear(inputs, 3 * hidden))
        self.from_state = weight_norm(nn.Linear(hidden, 3 * hidden, bias=False))

    def forward(self, x, h):
        xr, xz, xn = self.from_input(x).chunk(3, dim=-1)
        hr, hz, hn = self.from_state(h).chunk(3, dim=-1)
        r = torch.sigmoid(xr + hr)
        z = torch.sigmoid(xz + hz)
        n = torch.tanh(xn + r * hn)
        return torch.lerp(n, h, z)


class LatentDynamics(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(OBS, 256), nn.ELU(), nn.Linear(256, 256))
        self.cell = GatedCell(256 + ACT, HIDDEN)
        self.decoder = nn.Sequential(nn.Linear(HIDDEN, 256), nn.ELU(), nn.Linear(256, OBS))
        self.contact = nn.Linear(HIDDEN, 4)

    def initial(self, batch, device):
        return torch.zeros(batch, HIDDEN, device=device)

    def forward(self, obs, act, warmup):
        h = self.initial(obs.shape[0], obs.device)
        seen = obs[:, 0]
        states, contacts = [], []
        for t in range(act.shape[1]):
            x = torch.cat([self.encoder(seen), act[:, t]], dim=-1)
            h = self.cell(x, h)
            delta = self.decoder(h)
            states.append(seen + delta)
            contacts.append(self.contact(h))
            seen = obs[:, t + 1] if t + 1 < warmup else states[-1]
        return torch.stack(states, 1), torch.stack(contacts, 1)


class TrajectoryStore:
    def __init__(self, episodes, length, seed):
        rng = np.random.default_rng(seed)
        self.obs = rng.standard_normal((episodes, length + 1, OBS), dtype=np.float32)
        self.act = rng.uniform(-1, 1, (episodes, length, ACT)).astype(np.float32)
        self.foot = rng.integers(0, 2, (episodes, length, 4)).astype(np.float32)
        self.rng = rng
        self.length = length

    def windows(self, batch, horizon):
        rows = self.rng.integers(0, len(self.obs), batch)
        starts = self.rng.integers(0, self.length - horizon + 1, batch)
        take = lambda a, n: torch.from_numpy(np.stack([a[r, s:s + n] for r, s in zip(rows, starts)]))
        return take(self.obs, horizon + 1), take(self.act, horizon), take(self.foot, horizon)


def train(model, store, device, updates=12):
    optim = torch.optim.Adam(model.parameters(), lr=2e-4)
    for update in range(updates):
        obs, act, foot = (t.to(device) for t in store.windows(BATCH, HORIZON))
        states, contacts = model(obs, act, warmup=10)
        loss = F.smooth_l1_loss(states, obs[:, 1:]) + 0.1 * F.binary_cross_entropy_with_logits(contacts, foot)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 100.0)
        optim.step()
        print(f"update {update:3d} loss {loss.item():.4f}")


@torch.no_grad()
def open_loop_error(model, store, device):
    obs, act, _ = (t.to(device) for t in store.windows(BATCH, HORIZON))
    states, _ = model(obs, act, warmup=20)
    return (states - obs[:, 1:]).abs().mean(dim=(0, 2)).cpu()


def main(device):
    torch.manual_seed(5)
    store = TrajectoryStore(episodes=40, length=400, seed=5)
    model = LatentDynamics().to(device)
    count = sum(p.numel() for p in model.parameters())
    print(f"parameters {count / 1e6:.1f}M, horizon {HORIZON}")
    train(model, store, device)
    curve = open_loop_error(model, store, device)
    print("open loop error at 10/50/150:", [round(curve[i].item(), 3) for i in (10, 50, 150)])


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
