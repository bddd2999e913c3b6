import torch
from torch.func import jacrev


class TransposeSolver:
    """Jacobian transpose inverse kinematics for many goals at once."""

    def __init__(self, arm, gain=0.6, iterations=6):
        self.arm = arm
        self.gain = gain
        self.iterations = iterations
        self.jacobian = jacrev(arm)

    def linearise(self, q):
        full = self.jacobian(q)
        return torch.diagonal(full, dim1=0, dim2=2).permute(2, 0, 1)

    def step(self, q, goals):
        error = goals - self.arm(q)
        jac = self.linearise(q)
        direction = torch.bmm(jac.transpose(1, 2), error.unsqueeze(-1)).squeeze(-1)
        moved = torch.bmm(jac, direction.unsqueeze(-1)).squeeze(-1)
        alpha = (error * moved).sum(-1, keepdim=True) / (moved.square().sum(-1, keepdim=True) + 1e-6)
        q = q + self.gain * alpha * direction
        return torch.minimum(torch.maximum(q, self.arm.lower), self.arm.upper)

    def solve(self, q, goals):
        for _ in range(self.iterations):
            q = self.step(q, goals)
        residual = (goals - self.arm(q)).norm(dim=-1)
        return q, residual
