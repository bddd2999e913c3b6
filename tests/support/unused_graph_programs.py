"""Programs with and without an autograd graph at the peak that no backward uses.

    python unused_graph_programs.py TRACE_FOLDER CASE...

records the cases one after another. The comment CHANGE marks the line that the finding must name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from cuda_programs import give_back_everything
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint_sequential

import pytorch_alloctrace as alloctrace

DEVICE = "cuda:0"
WIDTH, CLASSES, ROWS = 1024, 16, 2048
Batch = tuple[Tensor, Tensor]


def make_model(depth: int = 4) -> nn.Sequential:
    layers = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES)).to(DEVICE)


def make_batches(count: int, rows: int = ROWS) -> Iterator[Batch]:
    for _ in range(count):
        yield torch.rand(rows, WIDTH, device=DEVICE), torch.zeros(rows, dtype=torch.int64, device=DEVICE)


class Training:
    def __init__(self, depth: int = 4) -> None:
        self.model = make_model(depth)
        self.optimizer = torch.optim.SGD(self.model.parameters())

    def update(self, loss: Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def run_epoch(self, batches: int = 6) -> None:
        for inputs, labels in make_batches(batches):
            self.update(cross_entropy(self.model(inputs), labels))


# The graph is not used.


def collected_outputs() -> None:
    training = Training()
    for _ in range(2):
        training.run_epoch()
        outputs = []
        for inputs, _ in make_batches(8):
            outputs.append(training.model(inputs))  # CHANGE
        torch.cat(outputs).argmax(-1).float().mean().item()
        del outputs


def one_large_batch() -> None:
    training = Training()
    for _ in range(2):
        training.run_epoch()
        for inputs, labels in make_batches(1, 8 * ROWS):
            cross_entropy(training.model(inputs), labels).item()  # CHANGE


def compute_loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, labels = batch
    return cross_entropy(model(inputs), labels)


def shared_helper() -> None:
    training = Training()
    for _ in range(2):
        for batch in make_batches(6):
            training.update(compute_loss(training.model, batch))
        losses = []
        for batch in make_batches(8):
            losses.append(compute_loss(training.model, batch))  # CHANGE
        torch.stack(losses).mean().item()
        del losses


def phases_of_one_loop() -> None:
    training = Training()
    for _ in range(2):
        for is_training in (True, False):
            total = torch.zeros((), device=DEVICE)
            for inputs, labels in make_batches(8):
                loss = cross_entropy(training.model(inputs), labels)  # CHANGE
                if is_training:
                    training.update(loss)
                else:
                    total = total + loss
            total.item()


def outputs_kept_in_next_epoch() -> None:
    training = Training()
    for _ in range(3):
        training.run_epoch()
        outputs = []
        for inputs, _ in make_batches(8):
            outputs.append(training.model(inputs))  # CHANGE
    del outputs


def teacher_with_gradients() -> None:
    training, teacher = Training(1), make_model(12)
    for inputs, _ in make_batches(8):
        targets = teacher(inputs).softmax(-1)  # CHANGE
        training.update(cross_entropy(training.model(inputs), targets.detach()))


def inference() -> None:
    model = make_model()
    outputs = []
    for inputs, _ in make_batches(8):
        outputs.append(model(inputs))  # CHANGE
    torch.cat(outputs)


def many_collected_outputs() -> None:
    training = Training()
    for _ in range(2):
        training.run_epoch()
        outputs = []
        for inputs, _ in make_batches(40):
            outputs.append(training.model(inputs))  # CHANGE
        torch.cat(outputs)
        del outputs


# Healthy: backward uses the graph, or there is none.


def memory_carried_on() -> None:
    training = Training()
    body, head = training.model[:-1], training.model[-1]
    for _ in range(3):
        training.optimizer.zero_grad()
        memory = torch.zeros(ROWS, WIDTH, device=DEVICE)
        for inputs, _ in make_batches(8):
            memory = body(inputs + memory)
            head(memory).mean().backward(retain_graph=True)
        training.optimizer.step()


def peak_in_training() -> None:
    training = Training()
    for _ in range(2):
        training.run_epoch()
        for inputs, _ in make_batches(2, ROWS // 8):
            training.model(inputs).sum().item()


def micro_batches() -> None:
    training = Training()
    for _ in range(4):
        training.update(sum(cross_entropy(training.model(inputs), labels) for inputs, labels in make_batches(6)))


def more_and_more_micro_batches() -> None:
    training = Training()
    for count in range(1, 12, 2):
        losses = [cross_entropy(training.model(inputs), labels) for inputs, labels in make_batches(count)]
        training.update(torch.stack(losses).mean())


def gan() -> None:
    generator, discriminator = Training(), Training()
    widen = nn.Linear(CLASSES, WIDTH).to(DEVICE)
    for inputs, _ in make_batches(8):
        fake = widen(generator.model(torch.rand_like(inputs)))
        discriminator.update(discriminator.model(fake.detach()).mean() - discriminator.model(inputs).mean())
        generator.update(-discriminator.model(fake).mean())


def served_in_inference_mode() -> None:
    model = make_model()
    with torch.inference_mode():
        for inputs, _ in make_batches(8, 8 * ROWS):
            model(inputs).argmax(-1).sum().item()


@torch.no_grad()
def evaluate(model: nn.Module) -> float:
    features = []
    for inputs, _ in make_batches(40):
        features.append(model(inputs))
    return torch.stack([feature.mean() for feature in features]).sum().item()


def evaluation_under_no_grad() -> None:
    training = Training()
    for _ in range(3):
        training.run_epoch(10)
        evaluate(training.model[:4])


def phases_with_gradients_disabled() -> None:
    training = Training()
    for _ in range(2):
        for is_training in (True, False):
            features = []
            for inputs, labels in make_batches(8):
                with torch.set_grad_enabled(is_training):
                    hidden = training.model[:-1](inputs)
                    loss = cross_entropy(training.model[-1](hidden), labels)
                if is_training:
                    training.update(loss)
                else:
                    features.append(hidden)
            del features


def outputs_without_graph() -> None:
    training = Training()
    for _ in range(3):
        for is_training in (True, False):
            outputs = []
            for inputs, _ in make_batches(40):
                with torch.set_grad_enabled(is_training):
                    output = training.model[:-1](inputs)
                if is_training:
                    training.update(output.mean())
                else:
                    outputs.append(output)
            del outputs


def gradients_by_function() -> None:
    training = Training()
    parameters = [*training.model.parameters()]
    for inputs, labels in make_batches(8):
        losses = [cross_entropy(training.model(inputs + number), labels) for number in range(4)]
        gradients = torch.autograd.grad(torch.stack(losses).sum(), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        training.optimizer.step()
        del losses


def checkpointed() -> None:
    training = Training(8)
    for inputs, labels in make_batches(8):
        outputs = checkpoint_sequential(training.model, 4, inputs.requires_grad_(), use_reentrant=False)
        training.update(cross_entropy(outputs, labels))


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return gradient @ weight.t(), inputs.t() @ gradient


class ProductLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH))

    def forward(self, inputs: Tensor) -> Tensor:
        return Product.apply(inputs, self.weight)


def functions_with_own_backward() -> None:
    model = nn.Sequential(*[ProductLayer() for _ in range(6)]).to(DEVICE)
    for _ in range(6):
        losses = [model(inputs).mean() for inputs, _ in make_batches(5)]
        for loss in losses:
            loss.backward()
        del losses, loss


def retained_graph_of_functions() -> None:
    model = nn.Sequential(*[ProductLayer() for _ in range(6)]).to(DEVICE)
    for _ in range(6):
        losses = [model(inputs).mean() for inputs, _ in make_batches(5)]
        for loss in losses:
            loss.backward(retain_graph=True)
        del losses, loss


def one_forward() -> None:
    make_model()(next(make_batches(1, 8 * ROWS))[0])


def skipped_batch() -> None:
    training = Training()
    for number, (inputs, labels) in enumerate(make_batches(8)):
        is_bad = number == 4
        loss = cross_entropy(training.model(inputs.repeat(1 + is_bad, 1)), labels.repeat(1 + is_bad))
        if not is_bad:
            training.update(loss)


def interrupted() -> None:
    training = Training()
    for count in (2, 2, 2, 10):
        losses = []
        for inputs, labels in make_batches(count):
            losses.append(cross_entropy(training.model(inputs), labels))
            if len(losses) == 8:
                raise KeyboardInterrupt
        training.update(torch.stack(losses).mean())


def failed_second_phase() -> None:
    training = Training()
    training.run_epoch()
    for inputs, labels in make_batches(2, 8 * ROWS):
        loss = cross_entropy(training.model(inputs), labels)
        raise KeyboardInterrupt
        training.update(loss)


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    for case in cases:
        give_back_everything()
        alloctrace.enable(Path(folder) / f"{case}.alloctrace", devices=("cuda",))
        try:
            globals()[case]()
        except KeyboardInterrupt as error:
            sys.last_value = error  # as in a program that an exception ends
        alloctrace.disable()
        sys.last_value = None
