"""Optimise a cloud of Gaussians so that its renderings match the photos of a scene."""
import random
import sys
from argparse import ArgumentParser

import torch
from torch import nn

from splat_scene.cameras import Scene


class GaussianModel(nn.Module):
    def __init__(self, points):
        super().__init__()
        self.xyz = nn.Parameter(torch.randn(points, 3))
        self.color = nn.Parameter(torch.rand(points, 3))
        self.opacity = nn.Parameter(torch.zeros(points, 1))
        self.scale = nn.Parameter(torch.full((points, 3), -3.0))
        self.rotation = nn.Parameter(torch.randn(points, 4))

    def param_groups(self, args):
        return [
            {"params": [self.xyz], "lr": args.position_lr, "name": "xyz"},
            {"params": [self.color], "lr": args.feature_lr, "name": "color"},
            {"params": [self.opacity], "lr": 0.05, "name": "opacity"},
            {"params": [self.scale, self.rotation], "lr": 0.005, "name": "shape"},
        ]


def render(camera, gaussians, background):
    """Nearest-pixel splatting with soft weights."""
    h, w = camera.image_height, camera.image_width
    cam = gaussians.xyz @ camera.world_view[:3, :3].T + camera.world_view[:3, 3]
    screen = cam[:, :2] / cam[:, 2:].clamp(min=0.1)
    px = ((screen + 1) * 0.5 * torch.tensor([w - 1, h - 1], device=screen.device)).detach().long()
    index = px[:, 1].clamp(0, h - 1) * w + px[:, 0].clamp(0, w - 1)
    size = gaussians.scale.exp().mean(dim=1, keepdim=True) * nn.functional.normalize(gaussians.rotation)[:, :1].abs()
    weight = torch.sigmoid(gaussians.opacity) * torch.exp(-cam[:, 2:].abs() * size)
    canvas = background.view(1, 3).repeat(h * w, 1).index_add(0, index, gaussians.color * weight)
    return canvas.T.reshape(3, h, w)


def l1_loss(a, b):
    return (a - b).abs().mean()


def training(args):
    scene = Scene(args.views, args.height, args.width)
    gaussians = GaussianModel(args.points).cuda()
    optimizer = torch.optim.Adam(gaussians.param_groups(args), lr=0.0, eps=1e-15)
    background = torch.zeros(3, device="cuda")
    viewpoint_stack = None
    ema_loss = 0.0
    for iteration in range(1, args.iterations + 1):
        if not viewpoint_stack:
            viewpoint_stack = scene.get_train_cameras()
        viewpoint_cam = viewpoint_stack.pop(random.randint(0, len(viewpoint_stack) - 1))
        image = render(viewpoint_cam, gaussians, background)
        gt_image = viewpoint_cam.original_image.cuda()
        loss = l1_loss(image, gt_image)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        ema_loss = 0.4 * loss.item() + 0.6 * ema_loss
        if iteration % 50 == 0:
            print(f"[{iteration}/{args.iterations}] loss {ema_loss:.5f}")


def main():
    parser = ArgumentParser(description="Training script parameters")
    parser.add_argument("--views", type=int, default=150)
    parser.add_argument("--height", type=int, default=540)
    parser.add_argument("--width", type=int, default=960)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--position_lr", type=float, default=1.6e-4)
    parser.add_argument("--feature_lr", type=float, default=2.5e-3)
    args = parser.parse_args(sys.argv[1:])
    random.seed(0)
    training(args)
    print("Training complete.")


if __name__ == "__main__":
    main()
