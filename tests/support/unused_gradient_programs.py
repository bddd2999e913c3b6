"""Programs with and without gradients that no optimizer uses.

    python unused_gradient_programs.py TRACE_FOLDER CASE...

records the cases one after another. The comment CHANGE marks the line that the finding must name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from cuda_programs import give_back_everything
from torch import Tensor, nn
from torch.nn.functional import mse_loss

import pytorch_alloctrace as alloctrace

DEVICE = "cuda:0"
WIDTH, ROWS, STEPS = 2048, 256, 20


def make_model(depth: int = 4) -> nn.Sequential:
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]).to(DEVICE)


def make_batch(rows: int = ROWS) -> Tensor:
    return torch.rand(rows, WIDTH, device=DEVICE)


def train(model: nn.Module, compute_loss: Callable[[Tensor], Tensor], steps: int = STEPS) -> None:
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        compute_loss(make_batch()).backward()
        optimizer.step()


# No optimizer uses the gradients.


def teacher() -> None:
    student, teacher = make_model(1), make_model(8)

    def compute_loss(inputs: Tensor) -> Tensor:
        targets = teacher(inputs)  # CHANGE
        return mse_loss(student(inputs), targets)

    train(student, compute_loss)


def teacher_after_student() -> None:
    student, teacher = make_model(1), make_model(8)

    def compute_loss(inputs: Tensor) -> Tensor:
        outputs = student(inputs)
        targets = teacher(inputs)  # CHANGE
        return mse_loss(outputs, targets)

    train(student, compute_loss)


class HeadOnBackbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = make_model(6)
        self.head = nn.Linear(WIDTH, 8).to(DEVICE)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.backbone(inputs)
        return self.head(features)


def head() -> None:
    model = HeadOnBackbone()
    optimizer = torch.optim.Adam(model.head.parameters())
    for _ in range(STEPS):
        model(make_batch()).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def loss_network() -> None:
    generator, network = make_model(1), make_model(6)

    def compute_loss(inputs: Tensor) -> Tensor:
        generated = generator(inputs)
        return network(generated).mean()  # CHANGE

    train(generator, compute_loss)


class LowRankLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH, WIDTH))
        self.first = nn.Parameter(torch.rand(4, WIDTH))
        self.second = nn.Parameter(torch.rand(WIDTH, 4))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T + inputs @ self.first.T @ self.second.T


def low_rank() -> None:
    model = nn.Sequential(*[LowRankLinear() for _ in range(6)]).to(DEVICE)
    optimizer = torch.optim.Adam([value for name, value in model.named_parameters() if "weight" not in name])
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(make_batch()).sum().backward()  # not LINE
        optimizer.step()


def optimized_image() -> None:
    network = make_model(6)
    image = make_batch(1).requires_grad_()
    optimizer = torch.optim.LBFGS([image], max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = network(image).square().sum()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def soft_prompt() -> None:
    network = make_model(6)
    prompt = nn.Parameter(torch.rand(1, WIDTH, device=DEVICE))
    optimizer = torch.optim.Adam([prompt])
    for _ in range(STEPS):
        optimizer.zero_grad()
        inputs = torch.cat([prompt.expand(8, -1), make_batch()])
        network(inputs).sum().backward()  # CHANGE
        optimizer.step()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = inputs.view(8, -1, WIDTH).transpose(0, 1)
        query, key, value = self.project(rows).chunk(3, -1)
        return (query @ key.transpose(1, 2) @ value).transpose(0, 1).reshape(-1, WIDTH)


def attention_teacher() -> None:
    student, teacher = make_model(1), nn.Sequential(Attention(), Attention()).to(DEVICE)

    def compute_loss(inputs: Tensor) -> Tensor:
        targets = teacher(inputs.view(2, -1, WIDTH).flip(0))  # CHANGE
        return mse_loss(student(inputs), targets)

    train(student, compute_loss)


def backbone_between_parts() -> None:
    model, tail, backbone = make_model(1), make_model(1), make_model(8)

    def compute_loss(inputs: Tensor) -> Tensor:
        hidden = model(inputs).view(2, -1, WIDTH).transpose(0, 1)
        features = backbone(hidden)  # CHANGE
        return tail(features).mean()

    train(nn.ModuleList([model, tail]), compute_loss)


def micro_batches_with_teacher() -> None:
    student, teacher = make_model(1), make_model(8)
    optimizer = torch.optim.SGD(student.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(3):
            inputs = make_batch(8)
            targets = teacher(inputs)  # CHANGE
            mse_loss(student(inputs), targets).backward()
        optimizer.step()


class Teacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = make_model(2), make_model(6)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        return self.second(hidden)


def compute_targets(teacher: nn.Module, inputs: Tensor) -> Tensor:
    return teacher(inputs).softmax(-1)


def helper_that_calls_teacher() -> None:
    student, teacher = make_model(1), Teacher()

    def compute_loss(inputs: Tensor) -> Tensor:
        targets = compute_targets(teacher, inputs)
        return mse_loss(student(inputs), targets)

    train(student, compute_loss)


def second_part_updated_by_hand() -> None:
    first, second = make_model(1), make_model(6)

    def compute_loss(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            for parameter in second.parameters():
                if parameter.grad is not None:
                    parameter -= 1e-3 * parameter.grad
                    parameter.grad.zero_()
        hidden = first(inputs)
        return second(hidden).mean()  # CHANGE

    train(first, compute_loss)


# Healthy: an optimizer or the program uses the gradients, or there are none.


def frozen_teacher() -> None:
    student, teacher = make_model(2), make_model(8).requires_grad_(False)
    train(student, lambda inputs: mse_loss(student(inputs), teacher(inputs)))


def teacher_under_no_grad() -> None:
    student, teacher = make_model(2), make_model(8)

    def compute_loss(inputs: Tensor) -> Tensor:
        with torch.no_grad():
            targets = teacher(inputs)
        return mse_loss(student(inputs), targets)

    train(student, compute_loss)


def ordinary_training() -> None:
    model = make_model(6)
    train(model, lambda inputs: model(inputs).mean())


def gradients_set_to_zero() -> None:
    model = make_model(6)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        model(make_batch()).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def _train_gan(critic_steps: int, rounds: int, *, detaches: bool, rows_added: int = 0) -> None:
    generator, critic = make_model(6), make_model(4)
    of_generator = torch.optim.Adam(generator.parameters())
    of_critic = torch.optim.Adam(critic.parameters())
    for number in range(rounds):
        for _ in range(critic_steps):
            of_critic.zero_grad()
            fake = generator(make_batch(ROWS + number * rows_added))
            (critic(fake.detach() if detaches else fake).mean() - critic(make_batch()).mean()).backward()
            of_critic.step()
        of_generator.zero_grad()
        critic(generator(make_batch())).mean().backward()
        of_generator.step()
        if rows_added:
            of_generator.zero_grad()


def alternating_gan() -> None:
    _train_gan(1, STEPS, detaches=True)


def gan_with_many_critic_steps() -> None:
    _train_gan(25, 3, detaches=False)


def gan_with_larger_and_larger_batches() -> None:
    _train_gan(25, 3, detaches=False, rows_added=ROWS)


def gan_whose_generator_steps_once() -> None:
    _train_gan(25, 1, detaches=False)


def gan_without_detach() -> None:
    _train_gan(5, 6, detaches=False)


def many_micro_batches() -> None:
    model = make_model(6)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(4):
        for _ in range(32):
            model(make_batch(8)).mean().backward()
            alloctrace.step()
        optimizer.step()
        optimizer.zero_grad()


def many_micro_batches_beside_another_optimizer() -> None:
    model, other = make_model(6), make_model(1)
    optimizer, of_other = torch.optim.Adam(model.parameters()), torch.optim.Adam(other.parameters())
    for number in range(80):
        model(other(make_batch(8))).mean().backward()
        of_other.step()
        of_other.zero_grad()
        if number % 32 == 31:
            optimizer.step()
            optimizer.zero_grad()


def lbfgs() -> None:
    model = make_model(4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2, history_size=2)
    inputs = make_batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).mean()
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(closure)


def later_optimizer() -> None:
    model, head = make_model(6), make_model(1)
    of_head = torch.optim.Adam(head.parameters())
    optimizers = [of_head]
    for number in range(2 * STEPS):
        if number == STEPS:
            optimizers.append(torch.optim.Adam(model.parameters()))
        head(model(make_batch())).mean().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def updated_by_hand() -> None:
    model = make_model(6)
    for _ in range(STEPS):
        model(make_batch()).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e-3 * parameter.grad
                parameter.grad.zero_()
        alloctrace.step()


def master_weights() -> None:
    model = make_model(6).half()
    masters = [parameter.detach().float().requires_grad_() for parameter in model.parameters()]
    optimizer = torch.optim.Adam(masters)
    for _ in range(STEPS):
        model.zero_grad(set_to_none=False)
        model(make_batch().half()).mean().backward()
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.float()
        optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(masters, model.parameters(), strict=True):
                parameter.copy_(master)


def reference_gradients() -> None:
    model, old = make_model(2), make_model(6)
    reference = torch.autograd.grad(old(make_batch()).mean(), [*old.parameters()])
    train(model, lambda inputs: model(inputs).mean() + reference[0].sum())


def logged_gradients() -> None:
    model, other = make_model(1), make_model(1)
    log = []

    def compute_loss(inputs: Tensor) -> Tensor:
        log.append(torch.autograd.grad(other(inputs).mean(), [*other.parameters()]))
        return model(inputs).mean()

    train(model, compute_loss)


def buffers_of_hooks() -> None:
    model, other = make_model(1), make_model(6)
    averages: dict[Tensor, Tensor] = {}

    def update(parameter: Tensor) -> None:
        averages.setdefault(parameter, torch.zeros_like(parameter)).mul_(0.9).add_(parameter.grad)
        with torch.no_grad():
            parameter.sub_(averages[parameter])
        parameter.grad = None

    for parameter in other.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    train(model, lambda inputs: other(model(inputs)).mean())


def few_steps() -> None:
    student, teacher = make_model(1), make_model(8)
    train(student, lambda inputs: mse_loss(student(inputs), teacher(inputs)), steps=6)


def small_teacher() -> None:
    student, teacher = make_model(8), make_model(1)
    train(student, lambda inputs: mse_loss(student(inputs), teacher(inputs)))


if __name__ == "__main__":
    folder, *cases = sys.argv[1:]
    for case in cases:
        give_back_everything()
        alloctrace.enable(Path(folder) / f"{case}.alloctrace", devices=("cuda",))
        globals()[case]()
        alloctrace.disable()
