"""MAML for plankton species: meta-train on common taxa, test on rare ones.

At meta-test time the learner is fine-tuned for many more steps than during
meta-training, once per rare taxon group.

    python report_fewshot_plankton.py cuda
"""
import io
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

WAYS, SHOTS, QUERIES, SIDE = 5, 5, 10, 56


class ConvEmbedding(nn.Sequential):
    def __init__(self, width=32):
        layers = []
        for index in range(4):
            layers += [
                nn.Conv2d(1 if index == 0 else width, width, 3, padding=1),
                nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool2d(2),
            ]
        super().__init__(*layers, nn.Flatten(), nn.Linear(width * 9, WAYS))


class Learner:
    """The module together with one set of (possibly adapted) weights."""

    def __init__(self, module, weights, lr, first_order):
        self.module, self.weights = module, weights
        self.lr, self.first_order = lr, first_order

    def __call__(self, x):
        return functional_call(self.module, self.weights, (x,))

    def adapt(self, loss):
        second_order = not self.first_order
        names = list(self.weights)
        grads = torch.autograd.grad(
            loss, list(self.weights.values()), retain_graph=second_order, create_graph=second_order
        )
        self.weights = {n: self.weights[n] - self.lr * g for n, g in zip(names, grads)}


class MAML(nn.Module):
    def __init__(self, module, lr, first_order=False):
        super().__init__()
        self.module, self.lr, self.first_order = module, lr, first_order

    def clone(self, first_order=None):
        if first_order is None:
            first_order = self.first_order
        return Learner(self.module, dict(self.module.named_parameters()), self.lr, first_order)


class TaxonTasks:
    """Samples WAYS taxa and draws support and query images from them."""

    def __init__(self, taxa, per_taxon, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.images = torch.rand(taxa, per_taxon, 1, SIDE, SIDE, generator=self.generator)

    def sample(self, device):
        taxa = torch.randperm(len(self.images), generator=self.generator)[:WAYS]
        picks = torch.randperm(self.images.shape[1], generator=self.generator)[: SHOTS + QUERIES]
        images = self.images[taxa][:, picks]
        labels = torch.arange(WAYS)
        support, query = images[:, :SHOTS].flatten(0, 1), images[:, SHOTS:].flatten(0, 1)
        return (
            support.to(device), labels.repeat_interleave(SHOTS).to(device),
            query.to(device), labels.repeat_interleave(QUERIES).to(device),
        )


def fast_adapt(learner, task, adaptation_steps):
    support, support_labels, query, query_labels = task
    for _ in range(adaptation_steps):
        learner.adapt(F.cross_entropy(learner(support), support_labels))
    logits = learner(query)
    error = F.cross_entropy(logits, query_labels)
    accuracy = (logits.argmax(dim=1) == query_labels).float().mean()
    return error, accuracy


def meta_train(maml, tasks, optimizer, iterations, meta_batch, device):
    for iteration in range(iterations):
        optimizer.zero_grad()
        total = 0.0
        for _ in range(meta_batch):
            error, accuracy = fast_adapt(maml.clone(), tasks.sample(device), adaptation_steps=2)
            (error / meta_batch).backward()
            total += accuracy.item() / meta_batch
        optimizer.step()
        if iteration % 4 == 0:
            print(f"iteration {iteration:3d}: query accuracy {total:.3f}")


def test_group(maml, task, adaptation_steps):
    learner = maml.clone()
    error, accuracy = fast_adapt(learner, task, adaptation_steps)
    return error.item(), accuracy.item()


def meta_test(maml, tasks, groups, adaptation_steps, device):
    maml.eval()
    scores = []
    for group in range(groups):
        error, accuracy = test_group(maml, tasks.sample(device), adaptation_steps)
        scores.append(accuracy)
        print(f"group {group}: error {error:.3f}, accuracy {accuracy:.3f}")
    return sum(scores) / len(scores)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    common, rare = TaxonTasks(40, 30, seed=1), TaxonTasks(8, 20, seed=2)
    maml = MAML(ConvEmbedding().to(device), lr=0.05)
    optimizer = torch.optim.Adam(maml.parameters(), lr=1e-3)
    meta_train(maml, common, optimizer, iterations=12, meta_batch=3, device=device)
    accuracy = meta_test(maml, rare, groups=3, adaptation_steps=25, device=device)
    weights = io.BytesIO()
    torch.save(maml.state_dict(), weights)
    print(f"rare taxa: {accuracy:.3f}, weights {weights.tell() / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
