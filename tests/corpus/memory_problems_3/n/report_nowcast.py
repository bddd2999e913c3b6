"""Fine-tune a rain nowcasting model for one radar site, starting from the checkpoint of the national run."""
import copy
import pathlib
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

PAST, AHEAD, GRID = 6, 12, 64
STEPS = 12


class RadarMixer(nn.Module):
    """Mixes patches of the past frames and predicts the next ones."""

    def __init__(self, width=768, depth=6, patch=8):
        super().__init__()
        self.patch = patch
        tokens = (GRID // patch) ** 2
        self.inlet = nn.Linear(PAST * patch * patch, width)
        self.space = nn.ModuleList(nn.Linear(tokens, tokens) for _ in range(depth))
        self.feature = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )
        self.outlet = nn.Linear(width, AHEAD * patch * patch)

    def forward(self, frames):
        x = F.unfold(frames, self.patch, stride=self.patch).transpose(1, 2)
        x = self.inlet(x)
        for space, feature in zip(self.space, self.feature):
            x = x + space(x.transpose(1, 2)).transpose(1, 2)
            x = x + feature(x)
        return F.fold(self.outlet(x).transpose(1, 2), (GRID, GRID), self.patch, stride=self.patch)


def national_run(path):
    """Stand-in for the long run: a step on the CPU, then the checkpoint that it leaves."""
    model = RadarMixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model(torch.rand(1, PAST, GRID, GRID)).square().mean().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "average": copy.deepcopy(model.state_dict()),
        "best": copy.deepcopy(model.state_dict()),
        "optimizer": optimizer.state_dict()["state"],
        "epoch": 180,
        "score": 0.412,
    }
    torch.save(state, path)


class SiteTrainer:
    def __init__(self, device, site):
        self.device, self.site = device, site
        self.model = RadarMixer().to(device)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.origin = {"epoch": 0, "score": 0.0}

    def restore(self, path):
        self.origin = torch.load(path, map_location=self.device)
        self.model.load_state_dict(self.origin["model"])
        self.average.load_state_dict(self.origin["average"])

    @torch.no_grad()
    def follow(self, decay=0.999):
        for slow, fast in zip(self.average.parameters(), self.model.parameters()):
            slow.lerp_(fast, 1 - decay)

    def step(self, past, ahead):
        loss = F.smooth_l1_loss(self.model(past), ahead)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.follow()
        return loss.detach()

    def describe(self, step, loss):
        used = torch.cuda.memory_allocated(self.device) / 2**20
        start = f"epoch {self.origin['epoch']}, score {self.origin['score']:.3f}"
        return f"{self.site} (from {start}) step {step}: loss {loss:.4f}, {used:.0f} MiB"


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(31)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "national.pt"
        national_run(path)
        trainer = SiteTrainer(device, "Feldberg")
        trainer.restore(path)
    for step in range(1, STEPS + 1):
        frames = torch.rand(8, PAST + AHEAD, GRID, GRID).to(device)
        loss = trainer.step(frames[:, :PAST], frames[:, PAST:])
        if step % 4 == 0:
            print(trainer.describe(step, loss.item()), flush=True)
    print(f"highest device memory {torch.cuda.max_memory_allocated(device) / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
