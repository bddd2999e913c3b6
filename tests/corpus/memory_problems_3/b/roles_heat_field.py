"""Fits a field to the heat equation in a battery pack; weights are kept in a plain list."""
import math

import torch

DEVICE = torch.device("cuda")
WIDTHS = [4, 2048, 2048, 2048, 1]
POINTS = 16_384
ROUNDS = 12


def make_weights(widths):
    weights = []
    for rows, columns in zip(widths[:-1], widths[1:]):
        bound = 1 / math.sqrt(rows)
        weights.append(((torch.rand(rows, columns, device=DEVICE) * 2 - 1) * bound).requires_grad_())
        weights.append(torch.zeros(columns, device=DEVICE, requires_grad=True))
    return weights


def field(weights, where):
    x = where
    pairs = list(zip(weights[::2], weights[1::2]))
    for w, b in pairs[:-1]:
        x = torch.sin(x @ w + b)
    w, b = pairs[-1]
    return (x @ w + b).squeeze(1)


def finite_residual(weights, where, step=1e-2):
    """Heat equation by finite differences in time and space."""
    centre = field(weights, where)
    moved = where.clone()
    moved[:, 3] += step
    change = (field(weights, moved) - centre) / step
    curvature = 0.0
    for axis in range(3):
        ahead = where.clone()
        ahead[:, axis] += step
        curvature = curvature + (field(weights, ahead) - centre) / step
    return change - 0.1 * curvature


def boundary(points, generator):
    where = torch.rand(points, 4, generator=generator)
    where[:, 0] = where[:, 0].round()
    return where.to(DEVICE), torch.full((points,), 25.0).to(DEVICE)


def main():
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(3)
    weights = make_weights(WIDTHS)
    optimizer = torch.optim.LBFGS(weights, lr=0.5, max_iter=4, history_size=10)
    inside = torch.rand(POINTS, 4, generator=generator).to(DEVICE)
    walls, temperature = boundary(POINTS // 8, generator)

    def closure():
        optimizer.zero_grad()
        loss = finite_residual(weights, inside).square().mean()
        loss = loss + (field(weights, walls) - temperature).square().mean()
        loss.backward()
        return loss

    for number in range(ROUNDS):
        loss = optimizer.step(closure)
        print(f"round {number} loss {float(loss):.5f}", flush=True)


if __name__ == "__main__":
    main()
