"""Train a small residual surrogate on smoke-plume trajectories (conditioned Navier-Stokes)."""
import argparse
import logging
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

log = logging.getLogger("surrogate")


class ResidualBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, width)
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x):
        h = self.conv1(F.gelu(self.norm1(x)))
        h = self.conv2(F.gelu(self.norm2(h)))
        return x + h


class ResNet2d(nn.Module):
    def __init__(self, in_fields, out_fields, width=24, depth=3):
        super().__init__()
        self.lift = nn.Conv2d(in_fields, width, 1)
        self.blocks = nn.Sequential(*[ResidualBlock(width) for _ in range(depth)])
        self.project = nn.Conv2d(width, out_fields, 1)

    def forward(self, x):
        return self.project(self.blocks(self.lift(x)))


class PDEModel(nn.Module):
    """One scalar component (smoke density) and one vector component (velocity)."""

    def __init__(self, history=4, n_scalar=1, n_vector=1, lr=2e-4):
        super().__init__()
        self.n_scalar = n_scalar
        self.fields = n_scalar + 2 * n_vector
        self.net = ResNet2d(history * self.fields, self.fields)
        self.lr = lr

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=1e-5)

    def train_step(self, batch):
        x, y = batch
        b, t, c, h, w = x.shape
        pred = self.net(x.reshape(b, t * c, h, w))
        loss = F.mse_loss(pred, y)
        return loss, pred, y

    def training_step(self, batch):
        loss, pred, target = self.train_step(batch)
        scalar_loss = F.mse_loss(pred[:, :self.n_scalar], target[:, :self.n_scalar])
        vector_loss = F.mse_loss(pred[:, self.n_scalar:], target[:, self.n_scalar:])
        return {"loss": loss, "scalar_loss": scalar_loss, "vector_loss": vector_loss}

    def training_epoch_end(self, outputs):
        for key in outputs[0]:
            values = torch.stack([out[key] for out in outputs])
            log.info("train/%s %.5f", key, values.mean().item())


class PlumeDataset(torch.utils.data.Dataset):
    def __init__(self, n_traj, grid, history, fields):
        self.n_traj, self.grid, self.history, self.fields = n_traj, grid, history, fields

    def __len__(self):
        return self.n_traj

    def __getitem__(self, idx):
        g = torch.Generator().manual_seed(idx)
        u = torch.randn(self.history + 1, self.fields, self.grid, self.grid, generator=g)
        return u[:-1], u[-1]


class Trainer:
    def __init__(self, device, max_epochs):
        self.device = device
        self.max_epochs = max_epochs
        self.history = defaultdict(list)

    def fit(self, model, loader):
        model.to(self.device)
        optimizer = model.configure_optimizers()
        for epoch in range(self.max_epochs):
            epoch_outputs = []
            for step, batch in enumerate(loader):
                batch = [t.to(self.device, non_blocking=True) for t in batch]
                out = model.training_step(batch)
                optimizer.zero_grad()
                out["loss"].backward()
                optimizer.step()
                out["loss"] = out["loss"].detach()
                epoch_outputs.append(out)
                if step % 50 == 0:
                    log.info("epoch %d step %d", epoch, step)
            model.training_epoch_end(epoch_outputs)


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=8)
    p.add_argument("--trajectories", type=int, default=1600)
    p.add_argument("--grid", type=int, default=96)
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.manual_seed(7)
    model = PDEModel()
    dataset = PlumeDataset(args.trajectories, args.grid, 4, model.fields)
    loader = torch.utils.data.DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    Trainer("cuda", args.epochs).fit(model, loader)


if __name__ == "__main__":
    main()
