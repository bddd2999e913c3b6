"""Quantises a model: activations of 80 batches are collected for the scales and freed; then it serves."""

import sys

import torch
from torch import nn


class Observer:
    """Collects the input of a layer through a hook that is removed after calibration."""

    def __init__(self, layer):
        self.samples = []
        self.handle = layer.register_forward_pre_hook(self.record)

    def record(self, _module, inputs):
        self.samples.append(inputs[0].detach().flatten())

    def finish(self):
        scale = torch.cat(self.samples).abs().quantile(0.99) / 127
        self.samples.clear()
        self.handle.remove()
        return scale


class QuantizedLinear(nn.Module):
    def __init__(self, layer, scale):
        super().__init__()
        self.register_buffer("input_scale", scale)
        weight = layer.weight.detach()
        self.register_buffer("weight_scale", weight.abs().amax(dim=1) / 127)
        self.register_buffer("weight", torch.round(weight / self.weight_scale[:, None]).to(torch.int8))
        self.register_buffer("bias", layer.bias.detach())

    def forward(self, x):
        rounded = torch.round(x / self.input_scale).clamp(-127, 127)
        return (rounded @ self.weight.float().T) * self.weight_scale * self.input_scale + self.bias


def quantize(model, device, batches):
    observers = {name: Observer(layer) for name, layer in model.named_children() if isinstance(layer, nn.Linear)}
    for _ in range(batches):
        model(torch.randn(16, 64, device=device))
    for name, observer in observers.items():
        setattr(model, name, QuantizedLinear(getattr(model, name), observer.finish()))
    return model


def main():
    device = sys.argv[1]
    torch.manual_seed(81)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8)).to(device)
    answered = 0
    with torch.no_grad():
        quantize(model, device, batches=80)
        for _ in range(500):
            model(torch.randn(4, 64, device=device))
            answered += 1
    print(f"{answered} requests to the quantised model")


if __name__ == "__main__":
    main()
