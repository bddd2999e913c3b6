"""Continual learning on a stream of tasks with elastic weight consolidation."""
import itertools

import torch
from torch import autograd, nn
from torch.nn import functional as F

TASKS = ["birds", "aircraft", "flowers", "cars"]
CLASSES = 200


def task_stream(names, batches, batch_size, size=96):
    """Yields (name, factory of loaders); each loader gives batches on the host."""
    def loader(seed, count):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count):
            yield (torch.zeros(batch_size, 3, size, size),
                   torch.randint(0, CLASSES, (batch_size,), generator=generator))

    for seed, name in enumerate(names):
        yield name, lambda count=batches, seed=seed: loader(seed, count)


def to_gpu(loader):
    for images, labels in loader:
        yield images.cuda(non_blocking=True), labels.cuda(non_blocking=True)


def conv_stage(width_in, width_out):
    return nn.Sequential(
        nn.Conv2d(width_in, width_out, 3, stride=2, padding=1, bias=False), nn.GroupNorm(8, width_out), nn.ReLU(),
        nn.Conv2d(width_out, width_out, 3, padding=1, bias=False), nn.GroupNorm(8, width_out), nn.ReLU(),
    )


class Backbone(nn.Module):
    def __init__(self, widths=(32, 64, 128, 256)):
        super().__init__()
        self.stages = nn.Sequential(*[conv_stage(a, b) for a, b in itertools.pairwise((3,) + widths)])
        self.classifier = nn.Linear(widths[-1], CLASSES)

    def forward(self, x):
        return self.classifier(self.stages(x).mean(dim=(2, 3)))


class ElasticWeightConsolidation:
    def __init__(self, model, weight=1000.0, lr=1e-2):
        self.model = model
        self.weight = weight
        self.optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        self.consolidated = False

    def _buffers(self, kind):
        for name, parameter in self.model.named_parameters():
            yield parameter, name.replace(".", "__") + kind

    def _update_mean_params(self):
        for parameter, buffer in self._buffers("_estimated_mean"):
            self.model.register_buffer(buffer, parameter.detach().clone())

    def _update_fisher_params(self, loader):
        log_likelihoods = []
        for images, labels in to_gpu(loader):
            output = F.log_softmax(self.model(images), dim=1)
            log_likelihoods.append(output.gather(1, labels.unsqueeze(1)).squeeze(1))
        log_likelihood = torch.cat(log_likelihoods).mean()
        gradients = autograd.grad(log_likelihood, list(self.model.parameters()))
        for (parameter, buffer), gradient in zip(self._buffers("_estimated_fisher"), gradients):
            self.model.register_buffer(buffer, gradient.detach() ** 2)

    def register_ewc_params(self, loader):
        self._update_fisher_params(loader)
        self._update_mean_params()
        self.consolidated = True

    def consolidation_loss(self):
        if not self.consolidated:
            return 0.0
        losses = []
        for (parameter, mean), (_, fisher) in zip(self._buffers("_estimated_mean"),
                                                  self._buffers("_estimated_fisher")):
            losses.append((getattr(self.model, fisher) * (parameter - getattr(self.model, mean)) ** 2).sum())
        return (self.weight / 2) * sum(losses)

    def forward_backward_update(self, images, labels):
        loss = F.cross_entropy(self.model(images), labels) + self.consolidation_loss()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@torch.no_grad()
def accuracy(model, loader):
    right = total = 0
    for images, labels in to_gpu(loader):
        right += (model(images).argmax(dim=1) == labels).sum().item()
        total += len(labels)
    return right / total


def run(epochs=2, batches=60, batch_size=32):
    model = Backbone().cuda()
    ewc = ElasticWeightConsolidation(model)
    finished = {}
    for name, make_loader in task_stream(TASKS, batches, batch_size):
        for _ in range(epochs):
            for images, labels in to_gpu(make_loader()):
                loss = ewc.forward_backward_update(images, labels)
        trained = torch.cuda.max_memory_allocated() >> 20
        ewc.register_ewc_params(make_loader())
        finished[name] = make_loader
        scores = {task: round(accuracy(model, loader(5)), 3) for task, loader in finished.items()}
        print(f"{name}: loss {loss:.3f}, accuracy {scores}, {torch.cuda.memory_allocated() >> 20} MiB, "
              f"at most {trained} MiB in training", flush=True)


if __name__ == "__main__":
    torch.manual_seed(0)
    run()
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")
