from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class OptionQuotes:
    moneyness: torch.Tensor
    tenor: torch.Tensor
    implied: torch.Tensor
    vega: torch.Tensor

    @classmethod
    def simulate(cls, n, seed):
        rng = np.random.default_rng(seed)
        k = rng.normal(0.0, 0.25, n)
        t = rng.uniform(0.02, 2.0, n)
        smile = 0.18 + 0.12 * k ** 2 - 0.05 * k / np.sqrt(t + 0.1) + 0.004 * rng.standard_normal(n)
        d1 = (-k + 0.5 * smile ** 2 * t) / (smile * np.sqrt(t))
        vega = np.sqrt(t) * np.exp(-0.5 * d1 ** 2)
        return cls(*[torch.tensor(a, dtype=torch.float32) for a in (k, t, smile, vega)])

    def to(self, device):
        return OptionQuotes(self.moneyness.to(device), self.tenor.to(device),
                            self.implied.to(device), self.vega.to(device))

    @staticmethod
    def grid(device, n_k=41, n_t=25):
        k = torch.linspace(-0.8, 0.8, n_k, device=device)
        t = torch.linspace(0.02, 2.0, n_t, device=device)
        k, t = torch.meshgrid(k, t, indexing="ij")
        return k, t
