"""Solve a nonlinear diffusion equation with Anderson-accelerated fixed-point iterations (window of 12)."""
import argparse
from collections import deque

import torch
import torch.nn.functional as F


class DiffusionProblem:
    def __init__(self, n, device):
        self.n = n
        x = torch.linspace(0, 1, n, device=device)
        self.source = torch.exp(-40 * ((x[None] - 0.3) ** 2 + (x[:, None] - 0.6) ** 2))
        kernel = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, 0.25], [0.0, 0.25, 0.0]], device=device)
        self.kernel = kernel.view(1, 1, 3, 3)

    def sweep(self, u):
        """One damped Jacobi sweep with a coefficient that depends on the solution."""
        conductivity = 1.0 + u * u
        neighbours = F.conv2d(F.pad(u[None, None], (1, 1, 1, 1)), self.kernel)[0, 0]
        return 0.7 * (neighbours + self.source / (self.n ** 2 * conductivity)) + 0.3 * u


class Anderson:
    def __init__(self, window, mixing=1.0, ridge=1e-8):
        self.mixing, self.ridge = mixing, ridge
        self.iterates = deque(maxlen=window)
        self.residuals = deque(maxlen=window)

    def propose(self, x, fx):
        self.iterates.append(x.flatten())
        self.residuals.append((fx - x).flatten())
        m = len(self.residuals)
        if m == 1:
            return x + self.mixing * (fx - x)
        r = torch.stack(tuple(self.residuals))
        gram = r @ r.T
        gram = gram + self.ridge * torch.eye(m, device=r.device)
        ones = torch.ones(m, 1, dtype=torch.float64)
        weights = torch.linalg.lstsq(gram.double().cpu(), ones).solution
        weights = weights / weights.sum().clamp(min=1e-12)
        alpha = weights.to(r.dtype).to(r.device)
        combined = torch.stack(tuple(self.iterates)).T @ alpha + self.mixing * (r.T @ alpha)
        return combined.view_as(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--grid", type=int, default=1536)
    parser.add_argument("--window", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=120)
    args = parser.parse_args()
    device = torch.device("cuda")
    problem, accelerator = DiffusionProblem(args.grid, device), Anderson(args.window)
    u = torch.zeros(args.grid, args.grid, device=device)
    norms = []
    with torch.no_grad():
        for k in range(args.iterations):
            fu = problem.sweep(u)
            norms.append((fu - u).norm().item())
            u = accelerator.propose(u, fu)
            if k % 30 == 0:
                print(f"iteration {k}: residual {norms[-1]:.3e}")
    print(f"residual {norms[0]:.3e} -> {norms[-1]:.3e}, solution of {u.numel()} unknowns")


if __name__ == "__main__":
    main()
