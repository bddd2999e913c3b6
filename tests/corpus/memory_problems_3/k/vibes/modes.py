import torch
from torch.autograd.functional import hessian

MASS = torch.tensor([0.0, 1.008, 4.003, 6.94, 9.012, 10.81, 12.011, 14.007, 15.999, 18.998,
                     20.18, 22.99, 24.305, 26.98, 28.085, 30.974, 32.06, 35.45, 39.95, 39.1])


def mass_weighted(energy, z, pos):
    """Mass-weighted Hessian, shape (3N, 3N)."""
    n = pos.shape[0]
    h = hessian(lambda x: energy(z, x), pos, vectorize=True).reshape(3 * n, 3 * n)
    s = MASS.to(pos.device)[z].rsqrt().repeat_interleave(3)
    return h * s[:, None] * s[None, :]


def symmetrise(h):
    return 0.5 * (h + h.t())
