"""Training programs whose memory grows or fluctuates without a leak: none may be reported."""

from __future__ import annotations

import collections
import copy
import gc

import torch
from leak_corpus import STEPS, network, steps, update

import pytorch_alloctrace as alloctrace


def plain_training(device: str) -> object:
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(STEPS):
        loss = net(torch.randn(8, 64, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net, optimizer


def two_optimizers_of_a_gan(device: str) -> object:
    generator, critic = network(device), network(device)
    optimizers = [torch.optim.Adam(net.parameters()) for net in (generator, critic)]
    for _ in range(STEPS):
        fake = generator(torch.randn(8, 64, device=device))
        critic(fake.detach()).mean().backward()
        optimizers[1].step()
        critic(fake).mean().backward()
        optimizers[0].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    return generator, critic, optimizers


def part_of_the_model_unfrozen_late(device: str) -> object:
    # The optimizer's state of these parameters is made in the middle of the run.
    net, head = network(device), torch.nn.Linear(64, 64).to(device)
    net.requires_grad_(False)
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()])
    for step in range(STEPS):
        if step == STEPS // 2:
            net.requires_grad_(True)
        head(net(torch.randn(8, 64, device=device))).mean().backward()
        update(optimizer)
    return net, head, optimizer


def average_of_the_weights(device: str) -> object:
    net = network(device)
    average = {name: value.detach().clone() for name, value in net.state_dict().items()}
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(STEPS):
        net(torch.randn(8, 64, device=device)).mean().backward()
        update(optimizer)
        # Each average is a new tensor that replaces the one before.
        average = {name: 0.99 * average[name] + 0.01 * value for name, value in net.state_dict().items()}
    return average


def losses_accumulated_and_summed(device: str) -> object:
    net, losses = network(device), []
    optimizer = torch.optim.Adam(net.parameters())
    for step in steps(2 * STEPS):
        losses.append(net(torch.randn(8, 64, device=device)).square().mean())
        if step % 6 == 5:
            torch.stack(losses).mean().backward()
            losses.clear()
            update(optimizer)
    return losses


def moving_window_of_losses_with_graphs(device: str) -> object:
    net = network(device)
    window: collections.deque[torch.Tensor] = collections.deque(maxlen=20)
    for _ in steps():
        window.append(net(torch.randn(8, 64, device=device)).square().mean())
    return window


def logs_flushed_every_eight_steps(device: str) -> object:
    net, log = network(device), []
    for step in steps():
        with torch.no_grad():
            log.append(net(torch.randn(8, 64, device=device)))
        if step % 8 == 7:
            torch.cat(log).mean()
            log.clear()
    return log


def evaluation_every_five_steps_keeps_its_last_outputs(device: str) -> object:
    net, outputs = network(device), []
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        net(torch.randn(8, 64, device=device)).mean().backward()
        update(optimizer)
        if step % 5 == 4:
            with torch.no_grad():
                outputs = [net(torch.randn(16, 64, device=device)) for _ in range(8)]
    return outputs


def best_checkpoints_replaced(device: str) -> object:
    net = network(device)
    kept: collections.deque[object] = collections.deque(maxlen=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        net(torch.randn(8, 64, device=device)).mean().backward()
        update(optimizer)
        if step % 6 == 0:
            kept.append(copy.deepcopy(net.state_dict()))
    return kept


def models_swapped(device: str) -> object:
    net = network(device)
    for step in steps():
        if step % 10 == 9:
            net = torch.nn.Sequential(*[network(device) for _ in range(1 + step // 10)])
        with torch.no_grad():
            net(torch.randn(8, 64, device=device))
    return net


def curriculum_in_stages(device: str) -> object:
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        x = torch.randn(8 * (1 + step // 6), 64, device=device)
        loss = net(x).square().mean()
        loss.backward()
        update(optimizer)
    return net


def curriculum_longer_with_every_step(device: str) -> object:
    # To the end of the run; input, output and loss are held when each step ends.
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        x = torch.randn(16 + step, 64, device=device)
        output = net(x)
        loss = output.square().mean()
        loss.backward()
        update(optimizer)
    return net


def curriculum_of_tokens(device: str) -> object:
    embedding, head = torch.nn.Embedding(100, 32).to(device), torch.nn.Linear(32, 100).to(device)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()])
    for step in range(STEPS):
        tokens = torch.zeros(4, 8 + step, dtype=torch.long, device=device)
        logits = head(embedding(tokens))
        optimizer.zero_grad()
        logits.mean().backward()
        optimizer.step()
    return embedding, head


def longer_inputs_all_held(device: str) -> object:
    for step in steps():
        x = torch.randn(8, 16 + 4 * step, device=device)
        doubled = x * 2
        positive = doubled.relu()
        positive.sum()
    return x


def batches_sorted_by_length_each_epoch(device: str) -> object:
    net = network(device)
    for step in steps():
        x = torch.randn(8 + step % (STEPS // 2), 64, device=device)
        with torch.no_grad():
            output = net(x)
        output.mean()
    return net


def curriculum_up_to_a_ceiling(device: str) -> object:
    net = network(device)
    for step in steps():
        x = torch.randn(min(16 + step, 55), 64, device=device)
        with torch.no_grad():
            output = net(x)
        output.mean()
    return net


def inputs_of_varying_length(device: str) -> object:
    # Lengths in no order; and what has been seen longest so far grows all the time.
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        x = torch.randn(8 + step * 37 % 50, 64, device=device)
        loss = net(x).square().mean()
        loss.backward()
        update(optimizer)
    return net


def hidden_state_detached_each_step(device: str) -> object:
    cell = torch.nn.RNNCell(32, 128).to(device)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e-3)
    state = torch.zeros(8, 128, device=device)
    for _ in range(STEPS):
        state = cell(torch.randn(8, 32, device=device), state.detach())
        state.mean().backward()
        update(optimizer)
    return state


def garbage_collected_late(device: str) -> object:
    class Batch:
        def __init__(self) -> None:
            self.myself = self
            self.data = torch.randn(8, 64, device=device)

    gc.disable()
    net = network(device)
    for step in steps():
        with torch.no_grad():
            net(Batch().data)
        if step % 13 == 12:
            gc.collect()
    return net


def dataset_kept_from_the_first_epoch(device: str) -> object:
    net, dataset = network(device), []
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(STEPS):
        if step < STEPS // 3:
            dataset.append(torch.randn(8, 64, device=device))
        net(dataset[step % (STEPS // 3)]).mean().backward()
        update(optimizer)
    return dataset


def replay_buffer_filled_by_pieces(device: str) -> object:
    net, pieces = network(device), []
    for step in steps():
        if len(pieces) < 40:
            pieces.append(torch.empty(64, 64, device=device))
        else:
            pieces[step % 40].copy_(torch.randn(64, 64, device=device))
        with torch.no_grad():
            net(pieces[-1])
    return pieces


def losses_concatenated_to_a_bound(device: str) -> object:
    # Filled after two thirds of the run; from then on replaced by one of the same size.
    net, losses = network(device), torch.zeros(0, device=device)
    for _ in steps():
        with torch.no_grad():
            loss = net(torch.randn(8, 64, device=device)).square().mean(dim=1)
        losses = torch.cat([losses, loss])[-40 * 8 :].clone()
    return losses


def longer_inputs_and_vectors_of_a_row(device: str) -> object:
    # All is held, and the vectors are as large as what the inputs get longer by.
    weight = torch.ones(64, device=device)
    for step in steps():
        x = torch.randn(32 + step, 64, device=device)
        scale = weight * 2
        scaled = x * scale
        positive = scaled.relu()
    return positive


def experts_at_their_first_use(device: str) -> object:
    # Gradients and the optimizer's state of each are made then; some are chosen seldom.
    experts = [torch.nn.Linear(64, 64).to(device) for _ in range(24)]
    optimizer = torch.optim.Adam([weight for expert in experts for weight in expert.parameters()])
    for step in range(2 * STEPS):
        chosen = int((step * 0.618 % 1) ** 2 * len(experts))
        experts[chosen](torch.randn(8, 64, device=device)).mean().backward()
        update(optimizer)
    return experts, optimizer


def layers_added_while_training(device: str) -> object:
    # Each layer's gradients and state are made when it joins; all have joined after two thirds of the run.
    layers = [torch.nn.Linear(64, 64).to(device) for _ in range(6)]
    optimizer = torch.optim.Adam([weight for layer in layers for weight in layer.parameters()])
    for step in range(STEPS):
        x = torch.randn(8, 64, device=device)
        for layer in layers[: 1 + step // 7]:
            x = layer(x)
        x.mean().backward()
        update(optimizer)
    return layers, optimizer


def results_of_validation_until_the_epoch_ends(device: str) -> object:
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(4):
        results = []
        for batch in range(20):
            x = torch.randn(8, 64, device=device)
            if batch < 10:
                net(x).mean().backward()
                update(optimizer)
            else:
                with torch.no_grad():
                    results.append(net(x))
                alloctrace.step()
        torch.cat(results).mean()
    return net, optimizer


def more_and_more_batches_a_step(device: str) -> object:
    # A gradient is accumulated over ever more batches, up to a bound.
    net = network(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for step in range(STEPS):
        losses = [net(torch.randn(8, 64, device=device)).mean() for _ in range(1 + min(step // 5, 8))]
        torch.stack(losses).sum().backward()
        update(optimizer)
    return net
