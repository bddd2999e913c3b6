"""Trains a view-synthesis encoder with a hand-written batch norm that keeps running statistics.

Report: https://github.com/facebookresearch/synsin/pull/20 ("Memory leak in custom batch-norm": the stored statistics
        "are extending the computation graph on each call"; first in https://github.com/pytorch/pytorch/issues/20275)
Cause:  the running variance is updated outside torch.no_grad(), so it keeps the activations of all steps through var().
Line:   self.running_var = (1 - m) * self.running_var + m * x.var(dim=(0, 2, 3), unbiased=True)
Cure:   put the two updates under torch.no_grad() (or use x.detach() in them).
"""
import torch
from torch import nn


class StandingBatchNorm(nn.Module):
    """Batch norm whose gain and bias come from a noise vector; the statistics are stored for sampling."""

    def __init__(self, channels, noise=20, momentum=0.1, eps=1e-5):
        super().__init__()
        self.gain = nn.Linear(noise, channels)
        self.bias = nn.Linear(noise, channels)
        self.momentum = momentum
        self.eps = eps
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def update_statistics(self, x):
        m = self.momentum
        self.running_mean = (1 - m) * self.running_mean + m * x.mean(dim=(0, 2, 3))
        self.running_var = (1 - m) * self.running_var + m * x.var(dim=(0, 2, 3), unbiased=True)  # CAUSE

    def forward(self, x, noise):
        gain = (1 + self.gain(noise))[:, :, None, None]
        bias = self.bias(noise)[:, :, None, None]
        if self.training:
            self.update_statistics(x)
            normal = nn.functional.batch_norm(x, None, None, training=True, eps=self.eps)
        else:
            normal = nn.functional.batch_norm(x, self.running_mean, self.running_var, eps=self.eps)
        return normal * gain + bias


class EncoderBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm = StandingBatchNorm(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, noise):
        return self.skip(x) + self.conv(torch.relu(self.norm(x, noise)))


class ResNetEncoder(nn.Module):
    def __init__(self, channels=(16, 32, 32, 64)):
        super().__init__()
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1)
        self.blocks = nn.ModuleList(EncoderBlock(a, b) for a, b in zip(channels[:-1], channels[1:]))
        self.features = nn.Conv2d(channels[-1], 3, 1)

    def forward(self, images):
        noise = torch.randn(len(images), 20, device=images.device)
        x = self.stem(images)
        for block in self.blocks:
            x = block(x, noise)
        return self.features(x)


class ViewPairs:
    def __init__(self, batch_size, size, device):
        self.shape = (batch_size, 3, size, size)
        self.device = device

    def sample(self):
        source = torch.rand(self.shape)
        target = torch.roll(source, shifts=4, dims=3)
        return source.to(self.device), target.to(self.device)


def evaluate(model, pairs):
    model.eval()
    with torch.no_grad():
        source, target = pairs.sample()
        error = (model(source) - target).abs().mean().item()
    model.train()
    return error


def main(steps=100, evaluate_every=25):
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = ResNetEncoder().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    pairs = ViewPairs(batch_size=8, size=64, device=device)
    for step in range(1, steps + 1):
        source, target = pairs.sample()
        loss = (model(source) - target).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if step % evaluate_every == 0:
            print(f"step {step} loss {loss.item():.4f} validation {evaluate(model, pairs):.4f}")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
