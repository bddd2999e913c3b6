"""Training programs that leak, one function each. `# LEAK` marks the allocating line that the first finding must name.

A function's result lives until its recording has ended. `# LEAK on cuda` and `# LEAK on cpu` mark a line for one device
only: backward has no Python stack on CUDA.
"""

from __future__ import annotations

import gc
from typing import Any

import torch
from leak_corpus import STEPS, network, steps, update


def loss_kept_with_its_graph(device: str) -> object:
    net = network(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(8, 64, device=device)
        loss = net(x).square().mean()  # LEAK
        losses.append(loss)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()
    return losses


def outputs_in_a_list(device: str) -> object:
    net, predictions = network(device), []
    for _ in steps():
        x = torch.randn(8, 64, device=device)
        predictions.append(net(x))  # LEAK
    return predictions


def validation_loss_summed_without_no_grad(device: str) -> object:
    net = network(device)
    total = torch.zeros((), device=device)
    for _ in steps():
        x = torch.randn(8, 64, device=device)
        loss = (net(x) - 1).square().mean()  # LEAK
        total = total + loss
    return total


def forward_hook_appends_to_a_closure(device: str) -> object:
    net, seen = network(device), []
    net[0].register_forward_hook(lambda module, inputs, output: seen.append(output.detach()))
    for _ in steps():
        with torch.no_grad():
            net(torch.randn(8, 64, device=device))  # LEAK
    return seen


def gradient_hook_appends_to_a_closure(device: str) -> object:
    net, gradients = network(device), []
    for _ in steps():
        hidden = net[0](torch.randn(8, 64, device=device))
        hidden.register_hook(gradients.append)
        out = hidden.exp()  # LEAK on cuda
        out.sum().backward()  # LEAK on cpu
        net.zero_grad()
    return gradients


def penalty_of_gradients_kept_with_create_graph(device: str) -> object:
    net, penalties = network(device), []
    for _ in steps():
        x = torch.randn(8, 64, device=device, requires_grad=True)
        penalties.append(torch.autograd.grad(net(x).sum(), x, create_graph=True)[0].square().sum())  # LEAK
    return penalties


def hidden_state_never_detached(device: str) -> object:
    cell = torch.nn.RNNCell(32, 128).to(device)
    state = torch.zeros(8, 128, device=device)
    for _ in steps():
        x = torch.randn(8, 32, device=device)
        state = cell(x, state)  # LEAK
    return state


class Metric:
    """Collects what it is given, to compute a mean that nobody asks for."""

    def __init__(self) -> None:
        self.errors: list[torch.Tensor] = []

    def update(self, prediction: torch.Tensor, target: torch.Tensor) -> None:
        self.errors.append((prediction - target).abs())  # LEAK


def metrics_object(device: str) -> object:
    net, metric = network(device), Metric()
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(STEPS):
        prediction, target = net(torch.randn(8, 64, device=device)), torch.randn(8, 64, device=device)
        optimizer.zero_grad()
        (prediction - target).square().mean().backward()
        with torch.no_grad():
            metric.update(prediction, target)
        optimizer.step()
    return metric


metrics_object.leaks_in = Metric.update  # type: ignore[attr-defined]


class Remembering(torch.nn.Module):
    """Keeps every hidden state for a plot."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 256)
        self.history: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.linear(x).detach())  # LEAK
        self.history.append(hidden)
        return hidden.mean()


def module_attribute_list(device: str) -> object:
    net = Remembering().to(device)
    for _ in steps():
        net(torch.randn(8, 64, device=device))
    return net


module_attribute_list.leaks_in = Remembering.forward  # type: ignore[attr-defined]


class Exponential(torch.autograd.Function):
    """Sets its output as an attribute of ctx, not by save_for_backward: a cycle that no collector can see."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        result = x.exp()  # LEAK
        ctx.result = result
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.result


def output_as_an_attribute_of_ctx(device: str) -> object:
    weight = torch.randn(64, 64, device=device, requires_grad=True)
    for _ in steps():
        Exponential.apply(weight * 2)
    return weight


output_as_an_attribute_of_ctx.leaks_in = Exponential.forward  # type: ignore[attr-defined]


def optimizer_made_anew_each_epoch_and_kept(device: str) -> object:
    net, optimizers = network(device), []
    for _ in range(STEPS // 3):
        optimizer = torch.optim.Adam(net.parameters())
        optimizers.append(optimizer)
        for _ in steps(3):
            net(torch.randn(8, 64, device=device)).mean().backward()
            optimizer.step()  # LEAK
            optimizer.zero_grad()
    return optimizers


def parameters_added_and_never_removed(device: str) -> object:
    net = network(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        prompt = torch.nn.Parameter(torch.zeros(8, 64, device=device))  # LEAK
        optimizer.add_param_group({"params": [prompt]})
        net(prompt).mean().backward()
        prompt.grad = None
        update(optimizer)
    return optimizer


def tensors_in_the_log(device: str) -> object:
    net, log = network(device), []
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        output = net(torch.randn(8, 64, device=device))
        loss = output.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probabilities = output.detach().softmax(dim=1)  # LEAK
        log.append({"step": step, "loss": loss.detach(), "probabilities": probabilities})
    return log


def cycles_while_the_collector_is_off(device: str) -> object:
    class Batch:
        def __init__(self) -> None:
            self.myself = self
            self.data = torch.randn(8, 64, device=device)  # LEAK

    gc.disable()
    net = network(device)
    for _ in steps():
        with torch.no_grad():
            net(Batch().data)
    return net


def small_block_once_in_seven_steps(device: str) -> object:
    net, marks = network(device), []
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(3 * STEPS):
        net(torch.randn(8, 64, device=device)).mean().backward()
        update(optimizer)
        if step % 7 == 0:
            marks.append(torch.zeros(1, device=device))  # LEAK
    return marks


def losses_of_finished_steps(device: str) -> object:
    # Their graphs are gone; a scalar and the ends of the graph stay.
    net, losses = network(device), []
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        loss = net(torch.randn(8, 64, device=device)).square().mean()  # LEAK
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


def activations_of_many_lines(device: str) -> object:
    layers = [torch.nn.Linear(64, 64).to(device) for _ in range(4)]

    def model(x: torch.Tensor) -> torch.Tensor:
        x = layers[0](x)
        x = torch.tanh(x)
        x = layers[1](x)
        x = torch.sigmoid(x)
        return layers[2](x)

    outputs = []
    for _ in steps():
        outputs.append(model(torch.randn(8, 64, device=device)))  # LEAK
    return outputs


def buffer_of_features_concatenated(device: str) -> object:
    net, features = network(device), torch.empty(0, 64, device=device)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(STEPS):
        output = net(torch.randn(8, 64, device=device))
        output.mean().backward()
        features = torch.cat([features, output.detach()])  # LEAK
        update(optimizer)
    return features


def losses_concatenated_every_third_step(device: str) -> object:
    net, losses = network(device), torch.zeros(0, device=device)
    for step in steps(2 * STEPS):
        with torch.no_grad():
            loss = net(torch.randn(8, 64, device=device)).square().mean(dim=1)
        if step % 3 == 0:
            losses = torch.cat([losses, loss])  # LEAK
    return losses


def hook_registered_in_every_step(device: str) -> object:
    net = network(device)
    for _ in steps():
        mask = torch.rand(64, 256, device=device).round()  # LEAK
        net[2].weight.register_hook(lambda gradient, mask=mask: gradient * mask)
        net(torch.randn(8, 64, device=device)).mean().backward()
        net.zero_grad()
    return net


def counts_of_each_epoch_in_a_dict(device: str) -> object:
    net, counts = network(device), {}
    for step in steps(80):
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device))
            epoch = step // 10
            if epoch not in counts:
                counts[epoch] = torch.zeros(64, 64, device=device)  # LEAK
            counts[epoch] += output.T @ output
    return counts


def two_leaks_of_different_rate(device: str) -> object:
    net, outputs, sums = network(device), [], []
    for step in steps(80):
        with torch.no_grad():
            output = net(torch.randn(8, 64, device=device))
            outputs.append(output.abs())  # LEAK
            if step % 3 == 0:
                sums.append(output.sum(dim=1))
    return outputs, sums


def embedding_that_grows_by_a_row(device: str) -> object:
    words = torch.nn.Embedding(100, 32, device=device)
    for _ in steps():
        larger = torch.nn.Embedding(words.num_embeddings + 1, 32, device=device)  # LEAK
        with torch.no_grad():
            larger.weight[:-1] = words.weight
        words = larger
    return words


def history_thinned_out_now_and_then(device: str) -> object:
    # What is dropped is less than what is added.
    history = []
    for step in steps(80):
        history.append(torch.randn(64, 64, device=device).abs())  # LEAK
        if step % 10 == 9:
            del history[-4:]
    return history
