"""Pixel attributions for the chest x-ray classifier (path-integrated gradients)."""
import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn as nn

PATHOLOGIES = ["Atelectasis", "Cardiomegaly", "Effusion", "Infiltration", "Mass", "Nodule", "Pneumonia"]


class DenseLayer(nn.Sequential):
    def __init__(self, cin, growth):
        super().__init__(nn.BatchNorm2d(cin), nn.ReLU(), nn.Conv2d(cin, growth, 3, padding=1))

    def forward(self, x):
        return torch.cat([x, super().forward(x)], dim=1)


class CheXNet(nn.Module):
    def __init__(self, growth=8):
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 7, stride=2, padding=3)
        channels, stages = 16, []
        for _ in range(3):
            for _ in range(3):
                stages.append(DenseLayer(channels, growth))
                channels += growth
            stages.append(nn.Sequential(nn.Conv2d(channels, channels // 2, 1), nn.AvgPool2d(2)))
            channels //= 2
        self.stages = nn.Sequential(*stages)
        self.classifier = nn.Linear(channels, len(PATHOLOGIES))

    def forward(self, x):
        return self.classifier(self.stages(self.stem(x)).mean((2, 3)))


def gauss_legendre(n_steps):
    alphas, weights = np.polynomial.legendre.leggauss(n_steps)
    return (0.5 * (1 + alphas)).tolist(), (0.5 * weights).tolist()


class IntegratedGradients:
    def __init__(self, forward_func, multiply_by_inputs=True):
        self.forward_func = forward_func
        self.multiply_by_inputs = multiply_by_inputs

    def _gradients(self, inputs, target):
        inputs.requires_grad_(True)
        outputs = self.forward_func(inputs)[:, target]
        return torch.autograd.grad(outputs.sum(), inputs)[0]

    def attribute(self, inputs, baselines, target, n_steps=50):
        alphas, step_sizes = gauss_legendre(n_steps)
        scaled = torch.cat([baselines + alpha * (inputs - baselines) for alpha in alphas], dim=0)
        grads = self._gradients(scaled, target)
        sizes = torch.tensor(step_sizes, device=grads.device).view(n_steps, 1)
        scaled_grads = grads.contiguous().view(n_steps, -1) * sizes
        total = scaled_grads.sum(0).view_as(inputs)
        return total * (inputs - baselines) if self.multiply_by_inputs else total


def studies(count, size, seed=8):
    rng = np.random.default_rng(seed)
    for i in range(count):
        image = rng.normal(size=(1, 1, size, size)).astype(np.float32)
        yield f"00{i:06d}_000", torch.from_numpy(image), int(rng.integers(len(PATHOLOGIES)))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--studies", type=int, default=60)
    ap.add_argument("--size", type=int, default=112)
    ap.add_argument("--n-steps", type=int, default=200)
    args = ap.parse_args()

    torch.manual_seed(0)
    model = CheXNet().cuda().eval()
    ig = IntegratedGradients(model)
    index = []
    with TemporaryDirectory() as tmp:
        for name, image, finding in studies(args.studies, args.size):
            image = image.cuda()
            heat = ig.attribute(image, torch.zeros_like(image), finding, n_steps=args.n_steps)
            np.save(Path(tmp) / f"{name}.npy", heat.cpu().numpy().astype(np.float16))
            index.append({"study": name, "finding": PATHOLOGIES[finding]})
            if len(index) % 20 == 0:
                print(f"{len(index)} studies explained")
        (Path(tmp) / "index.json").write_text(json.dumps(index))


if __name__ == "__main__":
    main()
