# In [1]
"""A notebook saved as a script: compares learning rates on a toy problem and looks at the fits."""

import sys

import torch
from torch import nn

torch.manual_seed(54)
torch.set_num_threads(1)
device = sys.argv[1]
Out = []  # a notebook keeps what each cell returns


# In [2]
def show(value):
    Out.append(value)  # LEAK
    return value


x = torch.linspace(-3, 3, 600, device=device)[:, None]
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)


# In [3]
class Fit:
    def __init__(self, lr):
        self.model = nn.Sequential(nn.Linear(1, 24), nn.Tanh(), nn.Linear(24, 1)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)

    def __call__(self, steps):
        for _ in range(steps):
            loss = (self.model(x) - y).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        # No `torch.no_grad()` here: the curve comes with the graph that made it.
        return self.model(x)  # LEAK


# In [4]: run again and again, each time a little longer
for lr in (0.001, 0.003, 0.01, 0.03):
    fit = Fit(lr)
    for _again in range(45):
        show(fit(steps=3))  # LEAK

# In [5]
print(f"{len(Out)} outputs, the last of shape {tuple(Out[-1].shape)}")
