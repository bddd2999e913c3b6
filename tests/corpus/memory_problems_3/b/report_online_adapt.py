"""Meta-learned gesture recogniser: a few meta-training tasks, then it adapts to one wearer over a day."""
from contextlib import contextmanager

import torch
from torch import nn
from torch.func import functional_call


class GestureNet(nn.Module):
    def __init__(self, channels=12, window=128, width=1024, classes=8):
        super().__init__()
        self.net = nn.Sequential(
            nn.Flatten(), nn.Linear(channels * window, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, classes))

    def forward(self, x):
        return self.net(x)


class FunctionalModel:
    """A stateless view of a module whose parameters can be replaced step by step."""

    def __init__(self, module, track_higher_grads):
        self.module = module
        self.track_higher_grads = track_higher_grads
        self.names = [name for name, _ in module.named_parameters()]
        self._fast_params = [[p for p in module.parameters()]]

    def parameters(self, time=-1):
        return self._fast_params[time]

    def update_params(self, params):
        if not self.track_higher_grads:
            params = [p.detach().requires_grad_() for p in params]
        self._fast_params.append(params)

    def __call__(self, x):
        return functional_call(self.module, dict(zip(self.names, self.parameters())), (x,))


class DifferentiableSGD:
    def __init__(self, lr, track_higher_grads):
        self.lr = lr
        self.track_higher_grads = track_higher_grads

    def step(self, model, loss):
        params = model.parameters()
        grads = torch.autograd.grad(loss, params, create_graph=self.track_higher_grads)
        model.update_params([p - self.lr * g for p, g in zip(params, grads)])


@contextmanager
def innerloop(module, lr, track_higher_grads=True):
    yield FunctionalModel(module, track_higher_grads), DifferentiableSGD(lr, track_higher_grads)


def task_batch(size, device, classes=8):
    return torch.randn(size, 12, 128, device=device), torch.randint(classes, (size,)).to(device)


def meta_train(module, device, tasks=160, inner_steps=3):
    meta_optimizer = torch.optim.Adam(module.parameters(), lr=1e-4)
    for task in range(tasks):
        with innerloop(module, lr=0.02) as (fast, optimizer):
            for _ in range(inner_steps):
                x, y = task_batch(25, device)
                optimizer.step(fast, nn.functional.cross_entropy(fast(x), y))
            x, y = task_batch(60, device)
            outer = nn.functional.cross_entropy(fast(x), y)
        meta_optimizer.zero_grad()
        outer.backward()
        meta_optimizer.step()
        if task % 10 == 0:
            print(f"task {task}: outer loss {outer.item():.3f}")


def adapt(module, device, windows=140):
    """One gradient step per window in which the wearer confirmed a gesture."""
    correct = seen = 0
    with innerloop(module, lr=0.01, track_higher_grads=False) as (fast, optimizer):
        for window in range(windows):
            x, y = task_batch(16, device)
            logits = fast(x)
            correct += (logits.argmax(-1) == y).sum().item()
            seen += y.numel()
            optimizer.step(fast, nn.functional.cross_entropy(logits, y))
            if window % 20 == 0:
                print(f"window {window}: accuracy {correct / seen:.2f}, "
                      f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB")
        return [p.detach() for p in fast.parameters()]


def main():
    torch.manual_seed(3)
    device = torch.device("cuda")
    module = GestureNet().to(device)
    meta_train(module, device)
    personal = adapt(module, device)
    print(f"personal model of {sum(p.numel() for p in personal) / 1e6:.1f} M parameters")


if __name__ == "__main__":
    main()
