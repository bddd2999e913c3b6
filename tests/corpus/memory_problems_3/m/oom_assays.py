"""Meta-learned activity models for small assays (few measured molecules per assay)."""
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

BITS = 2048


class AssayPool:
    """Fingerprints and activities; validation assays have more measurements than training ones."""

    def __init__(self, assays, size, seed):
        rng = np.random.default_rng(seed)
        self.prints = (rng.random((assays, size, BITS)) < 0.03).astype(np.float32)
        self.activity = rng.normal(6.0, 1.2, (assays, size)).astype(np.float32)
        self.rng = rng

    def __len__(self):
        return len(self.prints)

    def sample(self, index, shots, device):
        order = self.rng.permutation(self.prints.shape[1])
        support, query = order[:shots], order[shots:]
        grab = lambda rows: (torch.from_numpy(self.prints[index, rows]).to(device),
                             torch.from_numpy(self.activity[index, rows]).to(device))
        return grab(support), grab(query)


class ActivityNet(nn.Module):
    def __init__(self, width=2048):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(BITS, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, width), nn.LayerNorm(width), nn.SiLU(),
            nn.Linear(width, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


class MetaLearner:
    def __init__(self, net, inner_lr=0.02, outer_lr=1e-4, inner_steps=3):
        self.net = net
        self.inner_lr = inner_lr
        self.inner_steps = inner_steps
        self.optim = torch.optim.Adam(net.parameters(), lr=outer_lr)

    def adapt(self, support, steps):
        x, y = support
        weights = dict(self.net.named_parameters())
        for _ in range(steps):
            loss = F.mse_loss(functional_call(self.net, weights, (x,)), y)
            grads = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
            weights = {k: w - self.inner_lr * g for (k, w), g in zip(weights.items(), grads)}
        return weights

    def predict(self, weights, x):
        return functional_call(self.net, weights, (x,))

    def meta_step(self, pool, picks, shots, device):
        self.optim.zero_grad(set_to_none=True)
        total = 0.0
        for index in picks:
            support, (qx, qy) = pool.sample(index, shots, device)
            weights = self.adapt(support, self.inner_steps)
            loss = F.mse_loss(self.predict(weights, qx), qy) / len(picks)
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(self.net.parameters(), 10.0)
        self.optim.step()
        return total

    def evaluate(self, pool, shots, steps, device):
        """Test-time protocol of the benchmark: fine-tune to convergence, then score the rest of the assay."""
        self.net.eval()
        errors = []
        for index in range(len(pool)):
            support, (qx, qy) = pool.sample(index, shots, device)
            weights = self.adapt(support, steps)
            with torch.no_grad():
                pred = self.predict(weights, qx)
                errors.append(F.l1_loss(pred, qy).item())
            print(f"  assay {index} MAE {errors[-1]:.3f}")
        self.net.train()
        return float(np.mean(errors))


def main(device):
    torch.manual_seed(29)
    rng = np.random.default_rng(29)
    train = AssayPool(assays=24, size=48, seed=1)
    valid = AssayPool(assays=3, size=160, seed=2)
    learner = MetaLearner(ActivityNet().to(device))
    for it in range(30):
        picks = rng.choice(len(train), 4, replace=False)
        loss = learner.meta_step(train, picks, shots=16, device=device)
        if it % 10 == 0:
            print(f"iteration {it:3d} query loss {loss:.4f}")
    print("validation")
    mae = learner.evaluate(valid, shots=64, steps=100, device=device)
    print(f"mean MAE {mae:.3f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
