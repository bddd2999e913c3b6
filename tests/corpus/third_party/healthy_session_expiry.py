"""A recommendation server whose visitors' states expire some time after the last click; visitors come in two waves."""

import random
import sys

import torch
from torch import nn

TIME_TO_LIVE = 60


class Sessions:
    def __init__(self, model, device):
        self.model = model
        self.device = device
        self.states = {}
        self.seen = {}

    @torch.no_grad()
    def click(self, visitor, item, now):
        state = self.states.get(visitor)
        if state is None:
            state = torch.zeros(256, device=self.device)
        self.states[visitor] = self.model(item, state)
        self.seen[visitor] = now

    def expire(self, now):
        for visitor in [v for v, last in self.seen.items() if now - last > TIME_TO_LIVE]:
            del self.states[visitor], self.seen[visitor]


def main():
    device = sys.argv[1]
    torch.manual_seed(8)
    torch.set_num_threads(1)
    rng = random.Random(8)
    sessions = Sessions(nn.GRUCell(64, 256).to(device), device)
    newcomer, most = 0, 0
    for now in range(900):
        busy = 100 <= now < 300 or 450 <= now < 650
        if rng.random() < (0.8 if busy else 0.15):
            newcomer += 1
        visitor = max(0, newcomer - rng.randrange(12))
        sessions.click(visitor, torch.randn(64, device=device), now)
        if now % 20 == 0:
            sessions.expire(now)
        most = max(most, len(sessions.states))
    print(f"{newcomer} visitors, at most {most} at a time, {len(sessions.states)} now")


if __name__ == "__main__":
    main()
