"""Bayesian dose-response network, trained with variational online Gauss-Newton.

Predicts the viability of a cell line from its expression profile and the
fingerprint of a compound; the posterior over the weights is a diagonal
Gaussian kept by the optimizer.

    python report_bayes_dose.py cuda
"""
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

GENES, BITS = 978, 1024


class DoseNet(nn.Module):
    def __init__(self, hidden=768):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(GENES + BITS + 1, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, profile, fingerprint, dose):
        return self.body(torch.cat([profile, fingerprint, dose.log1p()], dim=1)).squeeze(1)


class VOGN(Optimizer):
    """Variational online Gauss-Newton with a diagonal Gaussian posterior.

    train_size: number of training examples; prior_prec: precision of the
    zero-mean Gaussian prior; num_samples: weight samples per step.
    """

    def __init__(self, params, train_size, lr=1e-3, betas=(0.9, 0.999), prior_prec=1.0,
                 init_prec=1.0, num_samples=1):
        defaults = dict(lr=lr, betas=betas, prior_prec=prior_prec)
        super().__init__(params, defaults)
        self.train_size = train_size
        self.num_samples = num_samples
        parameters = self.param_groups[0]["params"]
        mean = parameters_to_vector(parameters)
        self.state["mean"] = mean
        self.state["precision"] = torch.full_like(mean, init_prec)
        self.state["momentum"] = torch.zeros_like(mean)
        self.state["step"] = 0

    def step(self, closure):
        group = self.param_groups[0]
        parameters = group["params"]
        lr, (beta1, beta2), prior_prec = group["lr"], group["betas"], group["prior_prec"]
        mean, precision = self.state["mean"], self.state["precision"]

        grad = torch.zeros_like(mean)
        curvature = torch.zeros_like(mean)
        losses = []
        for _ in range(self.num_samples):
            noise = torch.randn_like(mean)
            sample = mean + noise * (self.train_size * precision).rsqrt()
            vector_to_parameters(sample, parameters)
            loss = closure()
            sampled_grad = parameters_to_vector(torch.autograd.grad(loss, parameters)).detach()
            grad.add_(sampled_grad, alpha=1.0 / self.num_samples)
            curvature.add_(sampled_grad.square(), alpha=1.0 / self.num_samples)
            losses.append(loss.detach())

        self.state["step"] += 1
        tau = prior_prec / self.train_size
        momentum = beta1 * self.state["momentum"] + (1 - beta1) * (grad + tau * mean)
        precision = beta2 * precision + (1 - beta2) * (curvature + tau)
        bias1 = 1 - beta1 ** self.state["step"]
        bias2 = 1 - beta2 ** self.state["step"]
        mean = mean - lr / bias1 * momentum / (precision / bias2)

        self.state["mean"], self.state["precision"] = mean, precision
        self.state["momentum"] = momentum
        vector_to_parameters(mean, parameters)
        return torch.stack(losses).mean()


def screening_batches(count, batch_size, seed=9):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        profile = torch.randn(batch_size, GENES, generator=generator)
        fingerprint = (torch.rand(batch_size, BITS, generator=generator) < 0.06).float()
        dose = torch.rand(batch_size, 1, generator=generator) * 10
        viability = torch.sigmoid(profile[:, 0] - dose.squeeze(1) / 5)
        yield profile, fingerprint, dose, viability


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    batch_size, steps = 256, 60
    model = DoseNet().to(device)
    optimizer = VOGN(model.parameters(), train_size=batch_size * steps, lr=2e-3, num_samples=2)

    for step, batch in enumerate(screening_batches(steps, batch_size)):
        profile, fingerprint, dose, viability = (part.to(device) for part in batch)

        def closure():
            prediction = model(profile, fingerprint, dose)
            return F.mse_loss(prediction, viability) * 0.5 + 0.5 * math.log(2 * math.pi)

        loss = optimizer.step(closure)
        if step % 10 == 0:
            print(f"step {step:3d}  nll {loss.item():.4f}")
    spread = (optimizer.train_size * optimizer.state["precision"]).rsqrt().mean()
    print(f"mean posterior std {spread.item():.5f}")


if __name__ == "__main__":
    main()
