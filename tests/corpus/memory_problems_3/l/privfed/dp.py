import math

import torch
import torch.nn.functional as F
from torch.func import functional_call, grad, vmap


class PrivateGradient:
    """Clipped and noised gradient of the mean loss (Gaussian mechanism)."""

    def __init__(self, model, clip=1.0, noise=0.8):
        self.model, self.clip, self.noise = model, clip, noise
        self.per_patient = vmap(grad(self._loss), in_dims=(None, 0, 0, 0, 0))

    def _loss(self, params, labs, codes, ward, target):
        logit = functional_call(self.model, params, (labs, codes, ward))
        return F.binary_cross_entropy_with_logits(logit, target)

    def _clipped_sum(self, params, batch):
        grads = self.per_patient(params, *batch)
        square = sum(g.flatten(1).pow(2).sum(1) for g in grads.values())
        factor = (self.clip / (square.sqrt() + 1e-6)).clamp(max=1.0)
        return {name: torch.einsum("b,b...->...", factor, g) for name, g in grads.items()}

    def __call__(self, batch):
        params = {name: p.detach() for name, p in self.model.named_parameters()}
        size = len(batch[0])
        total = self._clipped_sum(params, batch)
        for name, p in self.model.named_parameters():
            noise = torch.randn_like(p) * (self.noise * self.clip)
            p.grad = (total[name] + noise) / size


def epsilon(steps, rate, noise, delta=1e-5):
    return rate * math.sqrt(2 * steps * math.log(1 / delta)) / noise
