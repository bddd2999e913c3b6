"""Injects bit flips into the feature maps of a one-stage detector and counts how often its boxes change."""
import math
from collections import Counter

import torch
from torch import nn


class ConvBlock(nn.Sequential):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.LeakyReLU(0.1))


class Detector(nn.Module):
    def __init__(self, classes=20, anchors=3):
        super().__init__()
        widths = [16, 32, 64, 128, 256]
        self.backbone = nn.ModuleList()
        inputs = 3
        for width in widths:
            self.backbone.append(nn.Sequential(ConvBlock(inputs, width, 2), ConvBlock(width, width)))
            inputs = width
        self.heads = nn.ModuleList(nn.Conv2d(width, anchors * (5 + classes), 1) for width in widths[2:])

    def forward(self, images):
        features, x = [], images
        for stage in self.backbone:
            x = stage(x)
            features.append(x)
        return [head(feature) for head, feature in zip(self.heads, features[2:])]


class FaultConfig:
    def __init__(self, layer_pattern, rate, bits, seed):
        self.layer_pattern = layer_pattern
        self.rate = rate
        self.bits = bits
        self.seed = seed

    def selects(self, name):
        return self.layer_pattern in name


class FaultInjector:
    """Wraps a model: multiplies values of the outputs of the selected layers by powers of two at random places."""

    def __init__(self, model, config):
        self.model = model
        self.config = config
        self.enabled = False
        self.scales = {}
        self.generator = torch.Generator(device="cuda").manual_seed(config.seed)
        self.add_hooks()

    def add_hooks(self):
        for name, module in self.model.named_modules():
            if isinstance(module, nn.Conv2d) and self.config.selects(name):
                module.register_forward_hook(self.make_hook(name))

    def make_hook(self, name):
        def hook(module, inputs, output):
            if not self.enabled:
                return None
            return output * self.scale(name, output)

        return hook

    def scale(self, name, output):
        if name not in self.scales:
            shape = output.shape
            hit = torch.rand(shape, device=output.device, generator=self.generator) < self.config.rate
            self.scales[name] = torch.where(hit, 2.0 ** self.config.bits, 1.0)
        return self.scales[name]

    def __enter__(self):
        self.enabled = True
        return self

    def __exit__(self, *exception):
        self.enabled = False

    def __call__(self, images):
        return self.model(images)


def decode(outputs, threshold=0.25):
    found = []
    for level in outputs:
        batch, channels, rows, columns = level.shape
        predictions = level.view(batch, 3, channels // 3, rows * columns)
        found.append(predictions[:, :, 4].sigmoid().gt(threshold).sum(dim=(1, 2)))
    return torch.stack(found).sum(dim=0).cpu()


class Campaign:
    def __init__(self, model, images):
        self.model = model
        self.images = images
        with torch.inference_mode():
            self.reference = decode(model(images))
        self.outcomes = Counter()

    @torch.inference_mode()
    def trial(self, config):
        injector = FaultInjector(self.model, config)
        with injector:
            detections = decode(injector(self.images))
        changed = int((detections != self.reference).sum())
        self.outcomes["masked" if changed == 0 else "changed"] += 1
        return changed

    def run(self, rates, layers, repetitions):
        for rate in rates:
            for layer in layers:
                changed = 0
                for repetition in range(repetitions):
                    changed += self.trial(FaultConfig(layer, rate, bits=8, seed=repetition))
                print(f"rate {rate:.0e}, {layer}: {changed} images changed, "
                      f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")


def main():
    torch.manual_seed(0)
    model = Detector().cuda().eval()
    images = torch.rand(4, 3, 416, 416).cuda()
    campaign = Campaign(model, images)
    campaign.run(
        rates=[10.0**exponent for exponent in range(-6, -2)],
        layers=["backbone.1", "backbone.2", "backbone.3", "heads"],
        repetitions=20,
    )
    total = sum(campaign.outcomes.values())
    print({outcome: round(count / total, 3) for outcome, count in campaign.outcomes.items()},
          f"margin {1.96 * math.sqrt(0.25 / total):.3f}")


if __name__ == "__main__":
    main()
