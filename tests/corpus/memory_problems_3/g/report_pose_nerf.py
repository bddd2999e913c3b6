"""Joint optimisation of a radiance field and of the camera poses of a small capture."""
import argparse
import logging
import math

import torch
import torch.nn as nn

logger = logging.getLogger(__name__)


class camera:
    """Namespace of camera helpers."""

    @staticmethod
    def to_hom(x):
        return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1)

    @staticmethod
    def img2cam(x, intr):
        return x @ camera.inv_intr(intr).transpose(-1, -2)

    @staticmethod
    def inv_intr(intr):
        out = torch.zeros_like(intr)
        out[..., 0, 0] = 1 / intr[..., 0, 0]
        out[..., 1, 1] = 1 / intr[..., 1, 1]
        out[..., 0, 2] = -intr[..., 0, 2] / intr[..., 0, 0]
        out[..., 1, 2] = -intr[..., 1, 2] / intr[..., 1, 1]
        out[..., 2, 2] = 1
        return out

    @staticmethod
    def cam2world(x, pose):
        rot, trans = pose[..., :3], pose[..., 3:]
        inv = torch.cat([rot.transpose(-1, -2), -rot.transpose(-1, -2) @ trans], dim=-1)
        return camera.to_hom(x) @ inv.transpose(-1, -2)

    @staticmethod
    def get_center_and_ray(height, width, pose, intr):
        y = torch.arange(height, dtype=torch.float32, device=pose.device).add_(0.5)
        x = torch.arange(width, dtype=torch.float32, device=pose.device).add_(0.5)
        yy, xx = torch.meshgrid(y, x, indexing="ij")
        xy_grid = torch.stack([xx, yy], dim=-1).view(-1, 2)
        xy_grid = xy_grid.repeat(len(pose), 1, 1)
        grid_3d = camera.img2cam(camera.to_hom(xy_grid), intr)
        center_3d = torch.zeros_like(grid_3d)
        grid_3d = camera.cam2world(grid_3d, pose)
        center_3d = camera.cam2world(center_3d, pose)
        return center_3d, grid_3d - center_3d


class PoseRefine(nn.Module):
    def __init__(self, n_views):
        super().__init__()
        self.se3 = nn.Embedding(n_views, 6)
        nn.init.zeros_(self.se3.weight)

    def forward(self, pose):
        w, u = self.se3.weight.split([3, 3], dim=-1)
        zero = torch.zeros_like(w[:, 0])
        wx = torch.stack([
            torch.stack([zero, -w[:, 2], w[:, 1]], -1),
            torch.stack([w[:, 2], zero, -w[:, 0]], -1),
            torch.stack([-w[:, 1], w[:, 0], zero], -1)], dim=-2)
        rot = torch.eye(3, device=w.device) + wx
        return torch.cat([rot @ pose[..., :3], rot @ pose[..., 3:] + u[..., None]], dim=-1)


class RadianceField(nn.Module):
    def __init__(self, width=96, n_freq=8):
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(n_freq) * math.pi)
        self.mlp = nn.Sequential(nn.Linear(6 * n_freq, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                                 nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, points):
        spectrum = (points[..., None] * self.freq).flatten(-2)
        rgb, density = self.mlp(torch.cat([spectrum.sin(), spectrum.cos()], -1)).split([3, 1], dim=-1)
        return rgb.sigmoid(), density.squeeze(-1).relu()


class Graph(nn.Module):
    def __init__(self, opt):
        super().__init__()
        self.opt = opt
        self.pose_refine = PoseRefine(opt.views)
        self.nerf = RadianceField()

    def render(self, pose, intr, ray_idx):
        center, ray = camera.get_center_and_ray(self.opt.height, self.opt.width, pose, intr)
        center, ray = center[:, ray_idx], ray[:, ray_idx]
        depth = torch.linspace(1, 6, self.opt.samples, device=ray.device)
        points = center[..., None, :] + ray[..., None, :] * depth[:, None]
        rgb, density = self.nerf(points)
        alpha = 1 - torch.exp(-density * (depth[1] - depth[0]))
        transmit = torch.exp(-(density * (depth[1] - depth[0])).cumsum(-1))
        return ((alpha * transmit)[..., None] * rgb).sum(-2)

    def forward(self, images, pose, intr):
        pixels = self.opt.height * self.opt.width
        ray_idx = torch.randperm(pixels, device=pose.device)[: self.opt.rays // self.opt.views]
        rgb = self.render(self.pose_refine(pose), intr, ray_idx)
        target = images[:, ray_idx].float() / 255
        return (rgb - target).pow(2).mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--views", type=int, default=72)
    parser.add_argument("--height", type=int, default=300)
    parser.add_argument("--width", type=int, default=400)
    parser.add_argument("--rays", type=int, default=1024)
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--iters", type=int, default=100)
    opt = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(0)

    images = torch.randint(0, 255, (opt.views, opt.height * opt.width, 3), dtype=torch.uint8).cuda()
    pose = torch.eye(3, 4).repeat(opt.views, 1, 1).cuda()
    intr = torch.tensor([[350.0, 0, opt.width / 2], [0, 350.0, opt.height / 2], [0, 0, 1]]).repeat(opt.views, 1, 1).cuda()
    graph = Graph(opt).cuda()
    optim_nerf = torch.optim.Adam(graph.nerf.parameters(), lr=1e-3)
    optim_pose = torch.optim.Adam(graph.pose_refine.parameters(), lr=3e-3)

    for it in range(opt.iters):
        optim_nerf.zero_grad()
        optim_pose.zero_grad()
        loss = graph(images, pose, intr)
        loss.backward()
        optim_nerf.step()
        optim_pose.step()
        if it % 20 == 0:
            logger.info("it %4d render loss %.5f", it, loss.item())


if __name__ == "__main__":
    main()
