"""Heatmaps by layer-wise relevance rules for a directory of images."""
from contextlib import contextmanager

import torch
from torch import nn


class VGG(nn.Module):
    def __init__(self, classes=1000, plan=(32, "M", 64, "M", 128, 128, "M", 256, "M")):
        super().__init__()
        layers, width = [], 3
        for step in plan:
            if step == "M":
                layers.append(nn.MaxPool2d(2))
            else:
                layers += [nn.Conv2d(width, step, 3, padding=1), nn.ReLU()]
                width = step
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Linear(width * 49, 1024), nn.ReLU(), nn.Linear(1024, classes))

    def forward(self, x):
        x = nn.functional.adaptive_avg_pool2d(self.features(x), 7)
        return self.classifier(x.flatten(1))


class Rule:
    """Replaces the gradient of a linear layer with relevance by hooks on module and grad function."""

    def __init__(self, stabilizer=1e-6):
        self.stabilizer = stabilizer
        self.stored = {}
        self.handles = []
        self.module = None

    def register(self, module):
        self.module = module
        self.handles.append(module.register_forward_hook(self.forward))
        return self

    def forward(self, module, inputs, output):
        self.stored["input"] = inputs[0]
        self.stored["output"] = output

        def backward(grad_inputs, grad_outputs):
            return self.backward(module, grad_inputs, grad_outputs)

        output.grad_fn.register_hook(backward)

    def modified(self, weight):
        return weight

    def backward(self, module, grad_inputs, grad_outputs):
        relevance = grad_outputs[0] / (self.stored["output"].detach() + self.stabilizer)
        scaled = [None if g is None or g.shape != self.stored["input"].shape else g * self.stored["input"].detach()
                  for g in grad_inputs]
        return tuple(g if s is None else s * relevance.mean() for g, s in zip(grad_inputs, scaled))

    def remove(self):
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


class Epsilon(Rule):
    pass


class ZPlus(Rule):
    def modified(self, weight):
        return weight.clamp(min=0)


class LayerMapComposite:
    def __init__(self, layer_map):
        self.layer_map = layer_map
        self.rules = []

    @contextmanager
    def context(self, model):
        for module in model.modules():
            for kind, rule in self.layer_map:
                if isinstance(module, kind):
                    self.rules.append(rule().register(module))
                    break
        try:
            yield model
        finally:
            for rule in self.rules:
                rule.remove()
            self.rules.clear()


COMPOSITES = {"epsilon_plus": [(nn.Conv2d, ZPlus), (nn.Linear, Epsilon)],
              "epsilon": [((nn.Conv2d, nn.Linear), Epsilon)]}


def images(count, size=224):
    for number in range(count):
        yield f"ILSVRC2012_val_{number:08d}", torch.zeros(1, 3, size, size)


def attribute(model, image, target, classes=1000):
    data = image.cuda().requires_grad_(True)
    relevance = torch.eye(classes, device="cuda")[[target]]
    composite = LayerMapComposite(COMPOSITES["epsilon_plus"])
    with composite.context(model) as modified:
        scores = modified(data)
        torch.autograd.backward((scores,), (relevance,))
    return data.grad.sum(1).cpu()


def main(count=60):
    model = VGG().cuda().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for number, (name, image) in enumerate(images(count)):
        heatmap = attribute(model, image, target=number % 1000)
        if number % 10 == 0:
            print(f"{name} relevance {heatmap.abs().sum().item():.3f}, reserved "
                  f"{torch.cuda.memory_reserved() >> 20}, allocated {torch.cuda.memory_allocated() >> 20} MiB")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
