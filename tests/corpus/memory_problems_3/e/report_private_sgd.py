"""Differentially private training of a chest X-ray classifier with per-sample gradients."""
import logging

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
log = logging.getLogger("dp")

MAX_NORM = 1.0
NOISE = 1.1
BATCH = 64


class GradSampleModule(nn.Module):
    """Records what per-sample gradients of linear layers need: inputs forward, output gradients backward."""

    def __init__(self, module):
        super().__init__()
        self._module = module
        for layer in module.modules():
            if isinstance(layer, nn.Linear):
                layer.activations = []
                layer.register_forward_hook(self.capture_activations)
                layer.register_full_backward_hook(self.capture_backprops)

    def capture_activations(self, layer, inputs, output):
        if not layer.training:
            return
        layer.activations.append(inputs[0].detach())

    def capture_backprops(self, layer, grad_input, grad_output):
        a = layer.activations.pop()
        b = grad_output[0].detach() * grad_output[0].shape[0]
        if a.dim() == 3:
            layer.weight.grad_sample = torch.einsum("nto,nti->noi", b, a)
            layer.bias.grad_sample = b.sum(1)
        else:
            layer.weight.grad_sample = torch.einsum("no,ni->noi", b, a)
            layer.bias.grad_sample = b

    def forward(self, x):
        return self._module(x)


class DPOptimizer:
    def __init__(self, params, lr):
        self.params = [p for p in params if p.requires_grad]
        self.inner = torch.optim.SGD(self.params, lr=lr, momentum=0.9)

    def step(self):
        sampled = [p for p in self.params if getattr(p, "grad_sample", None) is not None]
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in sampled], dim=1).norm(dim=1)
        factor = (MAX_NORM / (norms + 1e-6)).clamp(max=1.0)
        for p in sampled:
            clipped = torch.einsum("n,n...->...", factor, p.grad_sample)
            p.grad = (clipped + NOISE * MAX_NORM * torch.randn_like(p)) / factor.numel()
            p.grad_sample = None
        self.inner.step()
        self.inner.zero_grad()


class PatchClassifier(nn.Module):
    def __init__(self, patch=16, dim=192, classes=14):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(patch * patch, dim)
        self.mix1, self.mix2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        p = self.patch
        x = x.unfold(2, p, p).unfold(3, p, p).flatten(1, 3).flatten(2)
        x = torch.tanh(self.embed(x))
        x = x + self.mix2(F.gelu(self.mix1(x)))
        return self.head(x.mean(dim=1))


def evaluate(model, loader, device):
    correct = total = 0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images.to(device))
            correct += (logits.argmax(1) == labels.to(device)).sum().item()
            total += labels.numel()
    return correct / total


def main():
    device = torch.device("cuda")
    torch.manual_seed(0)
    train_set = TensorDataset(torch.rand(BATCH * 20, 1, 224, 224), torch.randint(0, 14, (BATCH * 20,)))
    val_set = TensorDataset(torch.rand(BATCH * 6, 1, 224, 224), torch.randint(0, 14, (BATCH * 6,)))
    train_loader = DataLoader(train_set, BATCH, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, BATCH)

    model = GradSampleModule(PatchClassifier().to(device))
    optimizer = DPOptimizer(model.parameters(), lr=0.05)
    step = 0
    for epoch in range(4):
        model.train()
        for images, labels in train_loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            step += 1
            if step % 5 == 0:
                log.info("epoch %d step %d loss %.3f val acc %.3f", epoch, step, loss.item(),
                         evaluate(model, val_loader, device))


if __name__ == "__main__":
    main()
