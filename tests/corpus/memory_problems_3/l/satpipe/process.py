import torch
import torch.nn as nn
import torch.nn.functional as F

from .scenes import SceneRejected


class LandCover(nn.Module):
    def __init__(self, bands, classes=9):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(bands, 24, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(24, 24, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(24, classes, 1),
        )

    def forward(self, x):
        return self.net(x)


class SceneProcessor:
    def __init__(self, model, device, max_cloud=0.45, min_sun=15.0):
        self.model, self.device = model, device
        self.max_cloud, self.min_sun = max_cloud, min_sun

    def check(self, scene, valid):
        usable = valid - scene.cloud_cover
        if scene.cloud_cover > self.max_cloud:
            raise SceneRejected(f"{scene.name}: cloud cover {scene.cloud_cover:.0%}, usable {usable:.0%}")
        if scene.sun_elevation < self.min_sun:
            raise SceneRejected(f"{scene.name}: sun at {scene.sun_elevation:.0f} degrees")

    @torch.inference_mode()
    def __call__(self, scene):
        pixels = scene.read()
        valid = float((pixels[0, ::8, ::8] >= 0).float().mean())
        raw = pixels.to(self.device)
        reflectance = raw.float().mul_(1e-4).clamp_(0, 1)
        coarse = F.avg_pool2d(reflectance[None], 4)
        haze = F.interpolate(coarse, size=reflectance.shape[1:], mode="bilinear", align_corners=False)[0]
        corrected = reflectance - 0.5 * haze
        self.check(scene, valid)
        counts = []
        for rows in corrected.split(512, dim=1):
            cover = self.model(rows[None]).argmax(1)
            counts.append(torch.zeros(9, device=self.device).index_add_(
                0, cover.flatten(), torch.ones(cover.numel(), device=self.device)).cpu())
        return torch.stack(counts).sum(0)
