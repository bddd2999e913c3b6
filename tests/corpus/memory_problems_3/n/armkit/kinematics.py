import math

import torch
from torch import nn

PANDA_DH = [
    (0.0, 0.333, 0.0),
    (0.0, 0.0, -math.pi / 2),
    (0.0, 0.316, math.pi / 2),
    (0.0825, 0.0, math.pi / 2),
    (-0.0825, 0.384, -math.pi / 2),
    (0.0, 0.0, math.pi / 2),
    (0.088, 0.107, math.pi / 2),
]


class SerialArm(nn.Module):
    """Forward kinematics of a serial arm from modified DH parameters."""

    def __init__(self, dh=PANDA_DH):
        super().__init__()
        table = torch.tensor(dh, dtype=torch.float32)
        self.register_buffer("a", table[:, 0])
        self.register_buffer("d", table[:, 1])
        self.register_buffer("cos_alpha", table[:, 2].cos())
        self.register_buffer("sin_alpha", table[:, 2].sin())
        self.register_buffer("lower", torch.full((len(dh),), -2.7))
        self.register_buffer("upper", torch.full((len(dh),), 2.7))

    @property
    def dof(self):
        return self.a.numel()

    def link(self, i, angle):
        c, s = angle.cos(), angle.sin()
        zero, one = torch.zeros_like(c), torch.ones_like(c)
        ca, sa = self.cos_alpha[i], self.sin_alpha[i]
        rows = [
            torch.stack([c, -s, zero, self.a[i] * one], -1),
            torch.stack([s * ca, c * ca, -sa * one, -sa * self.d[i] * one], -1),
            torch.stack([s * sa, c * sa, ca * one, ca * self.d[i] * one], -1),
            torch.stack([zero, zero, zero, one], -1),
        ]
        return torch.stack(rows, -2)

    def forward(self, q):
        pose = self.link(0, q[..., 0])
        for i in range(1, self.dof):
            pose = pose @ self.link(i, q[..., i])
        position = pose[..., :3, 3]
        rotation = torch.stack(
            [
                pose[..., 2, 1] - pose[..., 1, 2],
                pose[..., 0, 2] - pose[..., 2, 0],
                pose[..., 1, 0] - pose[..., 0, 1],
            ],
            -1,
        )
        return torch.cat([position, 0.5 * rotation], -1)
