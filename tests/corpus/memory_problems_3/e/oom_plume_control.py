"""Learn where to inject heat so that a smoke plume reaches a target shape (differentiable simulation)."""
import torch
from torch import nn, optim
import torch.nn.functional as F

GRID = 384
BATCH = 4
HORIZON = 240
EPOCHS = 5
DT = 0.05


class Controller(nn.Module):
    """Looks at a coarse view of the field, returns the strength of a few heaters."""

    def __init__(self, heaters=8):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(2 * 24 * 24, 128), nn.Tanh(), nn.Linear(128, heaters), nn.Sigmoid())

    def forward(self, density, temperature):
        coarse = F.adaptive_avg_pool2d(torch.cat([density, temperature], dim=1), 24)
        return self.net(coarse)


class PlumeSimulator(nn.Module):
    def __init__(self, grid, heaters=8):
        super().__init__()
        kernel = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])
        self.register_buffer("laplace", kernel.view(1, 1, 3, 3))
        y, x = torch.meshgrid(torch.linspace(-1, 1, grid), torch.linspace(-1, 1, grid), indexing="ij")
        self.register_buffer("coords", torch.stack([x, y], dim=-1).unsqueeze(0))
        centers = torch.linspace(-0.8, 0.8, heaters)
        spots = torch.exp(-((x[None] - centers[:, None, None]) ** 2 + (y[None] - 0.9) ** 2) / 0.01)
        self.register_buffer("spots", spots)

    def diffuse(self, field, rate):
        padded = F.pad(field, (1, 1, 1, 1), mode="replicate")
        return field + DT * rate * F.conv2d(padded, self.laplace)

    def advect(self, field, temperature):
        rise = torch.zeros_like(temperature).expand(-1, 2, -1, -1).clone()
        rise[:, 1:] = DT * temperature
        where = self.coords + rise.permute(0, 2, 3, 1)
        return F.grid_sample(field, where, align_corners=True, padding_mode="border")

    def step(self, density, temperature, power):
        source = torch.einsum("bh,hyx->byx", power, self.spots).unsqueeze(1)
        temperature = self.diffuse(self.advect(temperature, temperature), 0.2) + DT * source
        temperature = temperature * (1 - 0.1 * DT)
        density = self.diffuse(self.advect(density, temperature), 0.05) + DT * source
        return density, temperature


def rollout(simulator, controller, density, temperature, horizon):
    effort = density.new_zeros(())
    for _ in range(horizon):
        power = controller(density, temperature)
        density, temperature = simulator.step(density, temperature, power)
        effort = effort + power.pow(2).mean()
    return density, effort / horizon


def target_shape(grid, device):
    y, x = torch.meshgrid(torch.linspace(-1, 1, grid), torch.linspace(-1, 1, grid), indexing="ij")
    ring = torch.exp(-((x ** 2 + y ** 2).sqrt() - 0.5).pow(2) / 0.01)
    return ring.view(1, 1, grid, grid).to(device)


def main():
    device = "cuda"
    torch.manual_seed(4)
    simulator = PlumeSimulator(GRID).to(device)
    controller = Controller().to(device)
    optimizer = optim.Adam(controller.parameters(), lr=1e-3)
    target = target_shape(GRID, device)
    for epoch in range(EPOCHS):
        density = torch.rand(BATCH, 1, GRID, GRID, device=device) * 0.01
        temperature = torch.zeros_like(density)
        final, effort = rollout(simulator, controller, density, temperature, HORIZON)
        loss = F.mse_loss(final, target.expand_as(final)) + 1e-3 * effort
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}: loss {loss.item():.5f} effort {effort.item():.4f}")


if __name__ == "__main__":
    main()
