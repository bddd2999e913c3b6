"""Memory of a small CNN by role, next to the formula on paper: the requested bytes agree exactly.

The tool: the role of each block, in `blocks()`. A parameter, its gradient and each of Adam's two averages take 4 bytes
per element. Forward saves the output of each ReLU (backward needs its sign), the output of each pooling (the input of
the next layer), the index of each maximum in 8 bytes, and the logarithms of the softmax; not the output of a
convolution. The program holds the batch. Adam's step counts are on the CPU. On a GPU each block is rounded up to a
multiple of 512 bytes, so blocks are larger than requested.
"""

from __future__ import annotations

import torch
from marks import DEVICE, mark, trace_path
from torch import nn

import pytorch_alloctrace as alloctrace

IMAGES, SIDE, CLASSES = 64, 32, 10

alloctrace.enable(trace_path(__file__), overwrite=True)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Flatten(), nn.Linear(32 * (SIDE // 4) ** 2, CLASSES)),
).to(DEVICE)
optimizer = torch.optim.Adam(model.parameters())
for step in (1, 2):
    images = torch.zeros(IMAGES, 3, SIDE, SIDE, device=DEVICE)
    labels = torch.zeros(IMAGES, dtype=torch.int64, device=DEVICE)
    loss = nn.functional.cross_entropy(model(images), labels)
    mark(f"forward-{step}")
    loss.backward()
    mark(f"backward-{step}")
    optimizer.step()
    optimizer.zero_grad()
path = alloctrace.disable()

tensors = [16 * 3 * 9, 16, 32 * 16 * 9, 32, CLASSES * 32 * (SIDE // 4) ** 2, CLASSES]
parameters = 4 * sum(tensors)
on_gpu = DEVICE == "cuda"
relu = [4 * IMAGES * 16 * SIDE**2, 4 * IMAGES * 32 * (SIDE // 2) ** 2]
pool = [(4 + 8) * IMAGES * 16 * (SIDE // 2) ** 2, (4 + 8) * IMAGES * 32 * (SIDE // 4) ** 2]
softmax = 4 * IMAGES * CLASSES
paper = {
    "parameter": parameters,
    "gradient": parameters,
    "optimizer state": 2 * parameters + (0 if on_gpu else 4 * len(tensors)),
    "input": 4 * IMAGES * 3 * SIDE**2 + 8 * IMAGES,
    "activation": sum(relu) + sum(pool) + softmax + 4,  # 4: the sum of the labels' weights
}

trace = alloctrace.load(path)
print(f"\n{'':16}{'paper':>12}{'requested':>12}{'allocated':>12}")
for role, expected in paper.items():
    blocks = trace.blocks("mark:backward-2" if role == "gradient" else "mark:forward-2", device=DEVICE)
    matching = blocks[blocks["role"] == role]
    print(f"{role:16}{expected:12,}{matching['requested_bytes'].sum():12,}{matching['block_bytes'].sum():12,}")
