"""View synthesis of a quarry from a drone survey: a small ray-colour network."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

from survey_views import FlightFrames, FullFrameManager

FRAMES = 110
STEPS = 110
RAYS = 4096


class RayColour(nn.Module):
    def __init__(self, bands=6, width=128):
        super().__init__()
        self.bands = bands
        self.net = nn.Sequential(
            nn.Linear(6 * (2 * bands + 1), width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 3))

    def encode(self, rays):
        parts = [rays]
        for band in range(self.bands):
            parts += [torch.sin(rays * 2 ** band), torch.cos(rays * 2 ** band)]
        return torch.cat(parts, dim=-1)

    def forward(self, rays):
        return torch.sigmoid(self.net(self.encode(rays)))


def sample_pixels(height, width, count, device):
    rows = torch.randint(0, height, (count,)).to(device)
    cols = torch.randint(0, width, (count,)).to(device)
    return rows, cols


def make_rays(rows, cols, pose, height, width):
    direction = torch.stack([
        (cols - width / 2) / width,
        (rows - height / 2) / width,
        torch.ones_like(cols, dtype=torch.float32)], dim=-1)
    direction = direction @ pose[:, :3].t()
    origin = pose[:, 3].expand_as(direction)
    return torch.cat([origin, F.normalize(direction, dim=-1)], dim=-1)


class SurveyTrainer:
    def __init__(self, device):
        self.device = device
        self.manager = FullFrameManager(FlightFrames(FRAMES), device)
        self.model = RayColour().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=5e-4)

    def step(self):
        view = self.manager.next_train()
        image, pose = view["image"], view["camera_to_world"]
        height, width, _ = image.shape
        rows, cols = sample_pixels(height, width, RAYS, self.device)
        target = image.view(-1, 3).index_select(0, rows * width + cols)
        colour = self.model(make_rays(rows, cols, pose, height, width))
        loss = F.mse_loss(colour, target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def run(self, steps):
        total = 0.0
        for index in range(steps):
            total += self.step()
            if index % 30 == 29:
                print(f"step {index + 1:4d}  mse {total / 30:.5f}")
                total = 0.0


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    SurveyTrainer(device).run(STEPS)


if __name__ == "__main__":
    main()
