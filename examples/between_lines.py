"""Tensors that each line of a training step adds (+) and removes (-).

The tool: `print(alloctrace.changes())` between two lines lists the tensors allocated and freed since the last call, by
name, shape and allocating line. Forward adds the activations, which `loss.grad_fn` holds. Backward frees the
activations and adds gradients, which zero_grad frees; the first step of Adam adds two tensors per parameter.
"""

from __future__ import annotations

import torch
from marks import DEVICE, mark, trace_path

import pytorch_alloctrace as alloctrace


def show(name: str) -> None:
    mark(name)
    print(f"{alloctrace.changes()}\n")


alloctrace.enable(trace_path(__file__), overwrite=True)
net = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256)).to(DEVICE)
optimizer = torch.optim.Adam(net.parameters())
alloctrace.changes()  # count changes from here

batch = torch.zeros(2048, 512, device=DEVICE)
show("batch")
loss = net(batch).square().mean()
show("forward")
loss.backward()
show("backward")
optimizer.step()
show("step")
optimizer.zero_grad()
show("zero-grad")
del batch
show("deleted")

alloctrace.disable()
