"""Tunes a soft prompt for one customer after the other, with a frozen model. Each prompt is a group of the optimizer.

When a customer is done the prompt is handed over, but its group and its moments stay in the optimizer.
"""

import sys

import torch
from torch import nn


class FrozenModel(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, 8)
        self.requires_grad_(False)

    def forward(self, prompt, inputs):
        prompts = prompt.expand(inputs.shape[0], -1, -1)
        hidden, _ = self.mix(torch.cat([prompts, inputs], dim=1))
        return self.out(hidden[:, -1])


class PromptTuner:
    def __init__(self, device, width=64, length=24):
        self.device = device
        self.shape = (1, length, width)
        self.model = FrozenModel(width).to(device)
        self.optimizer = torch.optim.Adam([torch.zeros(1, device=device, requires_grad=True)], lr=0.01)

    def tune(self, steps):
        prompt = nn.Parameter(0.02 * torch.randn(self.shape, device=self.device))  # LEAK
        self.optimizer.add_param_group({"params": [prompt]})  # LEAK
        for _ in range(steps):
            inputs = torch.randn(6, 5, self.shape[2], device=self.device)
            targets = torch.randint(0, 8, (6,), device=self.device)
            loss = nn.functional.cross_entropy(self.model(prompt, inputs), targets)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()  # LEAK
        self.optimizer.zero_grad()
        return prompt.detach().cpu()


def main():
    torch.manual_seed(53)
    torch.set_num_threads(1)
    tuner = PromptTuner(sys.argv[1])
    length = 0.0
    for _customer in range(100):
        length += tuner.tune(steps=4).numel()
    print(f"{length:.0f} numbers delivered, {len(tuner.optimizer.param_groups)} groups")


if __name__ == "__main__":
    main()
