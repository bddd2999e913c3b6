"""Walking robot: broad search over controllers, then a world model is trained on the survivors' behaviour."""
import time

import torch
from torch import nn

from walker_population import MOTORS, SENSORS, Population

DEVICE = torch.device("cuda")


class WorldModel(nn.Module):
    def __init__(self, width=1024, depth=6):
        super().__init__()
        self.inp = nn.Linear(SENSORS + MOTORS, width)
        self.mid = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(depth))
        self.out = nn.Linear(width, SENSORS)

    def forward(self, sensors, motors):
        x = self.inp(torch.cat([sensors, motors], dim=-1))
        for layer in self.mid:
            x = x + layer(x)
        return self.out(x)


def search(size, survivors):
    started = time.time()
    population = Population(size, DEVICE, seed=8)
    terrain = torch.rand(32, SENSORS, device=DEVICE)
    population.evaluate(terrain)
    elite = population.select(survivors)
    print(f"search: kept {len(elite)} of {size} in {time.time() - started:.1f} s; "
          f"{torch.cuda.memory_allocated() >> 20} MiB allocated", flush=True)
    return elite


def behaviour(elite, batch, horizon):
    """Sensors and motors of a few survivors over a stretch of ground."""
    sensors = torch.rand(batch, horizon, SENSORS).to(DEVICE)
    chosen = elite[:: max(1, len(elite) // 8)][:8]
    with torch.no_grad():
        motors = torch.stack([m.act(sensors.flatten(0, 1)) for m in chosen]).mean(dim=0)
    return sensors, motors.view(batch, horizon, MOTORS)


def train_world_model(elite, steps, batch=512, horizon=128):
    model = WorldModel().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for step in range(steps):
        sensors, motors = behaviour(elite, batch, horizon)
        predicted = model(sensors[:, :-1], motors[:, :-1])
        loss = nn.functional.mse_loss(predicted, sensors[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"world model step {step} loss {loss.item():.4f}", flush=True)
    return model


def main():
    torch.manual_seed(8)
    elite = search(size=9000, survivors=0.25)
    train_world_model(elite, steps=40)


if __name__ == "__main__":
    main()
