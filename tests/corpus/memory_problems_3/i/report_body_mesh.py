"""Body mesh recovery from video crops; validated on a held-out set after every epoch."""
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F

VERTICES = 6890
JOINTS = 24
CROP = 64
BATCH = 24
EPOCHS = 14
TRAIN_STEPS = 6
VAL_STEPS = 8


class MeshRegressor(nn.Module):
    def __init__(self, hidden=256):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 5, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=4, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(64 * (CROP // 16) ** 2, hidden), nn.ReLU())
        self.shape_pose = nn.Linear(hidden, 96)
        self.to_vertices = nn.Linear(96, VERTICES * 3)
        self.register_buffer("joint_regressor", torch.rand(JOINTS, VERTICES) / VERTICES)

    def forward(self, crops):
        code = self.shape_pose(self.backbone(crops))
        vertices = self.to_vertices(code).view(-1, VERTICES, 3)
        joints = torch.matmul(self.joint_regressor, vertices)
        return {"vertices": vertices, "joints": joints, "code": code}


class VideoCrops:
    def __init__(self, steps, seed, device):
        self.steps = steps
        self.seed = seed
        self.device = device

    def __iter__(self):
        gen = torch.Generator().manual_seed(self.seed)
        for _ in range(self.steps):
            yield {
                "crops": torch.rand(BATCH, 3, CROP, CROP, generator=gen).to(self.device),
                "vertices": torch.rand(BATCH, VERTICES, 3, generator=gen).to(self.device),
                "joints": torch.rand(BATCH, JOINTS, 3, generator=gen).to(self.device),
            }


class MeshModule:
    """Training and validation steps in the style of a LightningModule."""

    def __init__(self, device):
        self.model = MeshRegressor().to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-4)
        self.val_vertex_results = []
        self.val_joint_errors = []

    def training_step(self, batch):
        out = self.model(batch["crops"])
        loss = F.l1_loss(out["vertices"], batch["vertices"])
        loss = loss + 5.0 * F.mse_loss(out["joints"], batch["joints"])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validation_step(self, batch):
        out = self.model(batch["crops"])
        error = (out["joints"] - batch["joints"]).norm(dim=-1)
        self.val_joint_errors.append(error.mean().item())
        self.val_vertex_results.append((out["vertices"], batch["vertices"]))

    @torch.no_grad()
    def on_validation_epoch_end(self):
        latest = self.val_vertex_results[-VAL_STEPS:]
        per_vertex = sum((predicted - target).norm(dim=-1).mean(dim=0)
                         for predicted, target in latest) / len(latest)
        summary = {
            "mpjpe": sum(self.val_joint_errors) / len(self.val_joint_errors),
            "pve": per_vertex.mean().item(),
        }
        self.val_joint_errors = []
        return summary


class Fitter:
    def __init__(self, module, device):
        self.module = module
        self.train_data = VideoCrops(TRAIN_STEPS, 1, device)
        self.val_data = VideoCrops(VAL_STEPS, 2, device)

    def fit(self, epochs):
        for epoch in range(epochs):
            self.module.model.train()
            losses = [self.module.training_step(batch) for batch in self.train_data]
            self.module.model.eval()
            for batch in self.val_data:
                self.module.validation_step(batch)
            summary = self.module.on_validation_epoch_end()
            print(f"epoch {epoch:2d} loss {sum(losses) / len(losses):.4f} "
                  f"mpjpe {summary['mpjpe']:.4f} pve {summary['pve']:.4f}")


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    Fitter(MeshModule(device), device).fit(EPOCHS)


if __name__ == "__main__":
    main()
