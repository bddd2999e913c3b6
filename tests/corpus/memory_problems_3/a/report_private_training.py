"""Differentially private training of an image classifier: clipped per-sample gradients from hooks, plus noise."""
import math

import torch
from torch import nn

NOISE = 1.1
MAX_NORM = 1.0


def linear_grad_sample(layer, activations, backprops):
    sample = torch.einsum("n...i,n...j->nij", backprops, activations)
    layer.weight.grad_sample = sample
    if layer.bias is not None:
        layer.bias.grad_sample = backprops.flatten(1, -2).sum(1) if backprops.dim() > 2 else backprops


def conv_grad_sample(layer, activations, backprops):
    n = activations.shape[0]
    columns = nn.functional.unfold(activations, layer.kernel_size, padding=layer.padding, stride=layer.stride)
    flat = backprops.reshape(n, layer.out_channels, -1)
    layer.weight.grad_sample = torch.einsum("nol,nkl->nok", flat, columns).reshape(n, *layer.weight.shape)
    if layer.bias is not None:
        layer.bias.grad_sample = flat.sum(-1)


SAMPLERS = {nn.Linear: linear_grad_sample, nn.Conv2d: conv_grad_sample}


class GradSampleModule(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._module = module
        self.handles = []
        for layer in self.trainable_layers():
            layer.activations = []
            self.handles.append(layer.register_forward_hook(self.capture_activations))
            self.handles.append(layer.register_full_backward_hook(self.capture_backprops))

    def trainable_layers(self):
        return [layer for layer in self._module.modules() if type(layer) in SAMPLERS]

    def capture_activations(self, layer, inputs, output):
        if not layer.training:
            return
        layer.activations.append(inputs[0].detach())

    def capture_backprops(self, layer, grad_inputs, grad_outputs):
        activations = layer.activations.pop()
        SAMPLERS[type(layer)](layer, activations, grad_outputs[0].detach() * activations.shape[0])

    def forward(self, x):
        return self._module(x)


class PrivateOptimizer:
    def __init__(self, optimizer, batch_size):
        self.optimizer = optimizer
        self.batch_size = batch_size

    @property
    def parameters(self):
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    def step(self):
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in self.parameters]).norm(dim=0)
        factor = (MAX_NORM / (norms + 1e-6)).clamp(max=1.0)
        for p in self.parameters:
            clipped = torch.einsum("n,n...->...", factor, p.grad_sample)
            p.grad = (clipped + NOISE * MAX_NORM * torch.randn_like(clipped)) / self.batch_size
            p.grad_sample = None
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def convnet(classes=10):
    def block(inputs, outputs):
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs).requires_grad_(False), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32), *block(32, 32), nn.AvgPool2d(2),
        *block(32, 64), *block(64, 64), nn.AvgPool2d(2),
        *block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(128, classes),
    )


def loader(count, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        images = torch.rand(batch_size, 3, 32, 32, generator=generator)
        yield images.cuda(), torch.randint(0, 10, (batch_size,), generator=generator).cuda()


def train_epoch(model, optimizer, epoch, batch_size=64):
    losses = []
    for images, labels in loader(25, batch_size, epoch):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(model, batch_size=128):
    correct = total = 0
    for images, labels in loader(8, batch_size, seed=1000):
        correct += (model(images).argmax(dim=1) == labels).sum().item()
        total += len(labels)
    return correct / total


def privacy_spent(steps, rate=0.01, delta=1e-5):
    return rate * math.sqrt(2 * steps * math.log(1 / delta)) / NOISE


def main(epochs=8):
    torch.manual_seed(0)
    model = GradSampleModule(convnet().cuda()).train()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = PrivateOptimizer(torch.optim.SGD(trainable, lr=0.1, momentum=0.9), batch_size=64)
    for epoch in range(epochs):
        loss = train_epoch(model, optimizer, epoch)
        print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy(model):.3f}, epsilon {privacy_spent(25 * (epoch + 1)):.2f}, "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
