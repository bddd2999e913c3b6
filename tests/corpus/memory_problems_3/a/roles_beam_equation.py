"""Physics-informed network for the bending of a beam: plain tensors as weights, L-BFGS with a closure."""
import math

import torch

DEVICE = "cuda"
LAYERS = [2, 1024, 1024, 1024, 1024, 1]


def initial_weights(sizes, seed=0):
    generator = torch.Generator(DEVICE).manual_seed(seed)
    weights = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        matrix = torch.randn(inputs, outputs, generator=generator, device=DEVICE).mul_(1 / math.sqrt(inputs))
        weights += [matrix.requires_grad_(), torch.zeros(outputs, device=DEVICE, requires_grad=True)]
    return weights


def network(weights, points):
    x = points
    pairs = list(zip(weights[::2], weights[1::2]))
    for matrix, bias in pairs[:-1]:
        x = torch.tanh(x @ matrix + bias)
    matrix, bias = pairs[-1]
    return x @ matrix + bias


def derivative(values, points, column):
    gradient, = torch.autograd.grad(values.sum(), points, create_graph=True)
    return gradient[:, column:column + 1]


class Beam:
    def __init__(self, inner=4000, edge=500, stiffness=1.0):
        self.inner = torch.rand(inner, 2, device=DEVICE, requires_grad=True)
        self.edge = torch.rand(edge, 2, device=DEVICE)
        self.stiffness = stiffness
        self.load = torch.sin(math.pi * self.inner.detach()[:, :1])

    def residual(self, weights):
        u = network(weights, self.inner)
        u_xx = derivative(derivative(u, self.inner, 0), self.inner, 0)
        u_t = derivative(u, self.inner, 1)
        return (u_t + self.stiffness * u_xx - self.load).pow(2).mean()

    def boundary(self, weights):
        return network(weights, self.edge).pow(2).mean()


def solve(rounds=12):
    beam = Beam()
    weights = initial_weights(LAYERS)
    optimizer = torch.optim.LBFGS(weights, lr=0.8, max_iter=8, history_size=10, tolerance_grad=-1.0, tolerance_change=-1.0)
    evaluations = 0

    def closure():
        nonlocal evaluations
        optimizer.zero_grad(set_to_none=True)
        loss = beam.residual(weights) + 10.0 * beam.boundary(weights)
        loss.backward()
        evaluations += 1
        return loss

    for number in range(rounds):
        loss = optimizer.step(closure)
        print(f"round {number}: loss {float(loss):.5f} after {evaluations} evaluations")
    return weights


if __name__ == "__main__":
    solution = solve()
    with torch.no_grad():
        line = torch.linspace(0, 1, 101, device=DEVICE)
        print(network(solution, torch.stack([line, line], dim=1)).abs().max().item())
