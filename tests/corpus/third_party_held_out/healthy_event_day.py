"""A game server on the day of an event: players join until noon, and all have left by midnight. Each has a state."""

import math
import random
import sys

import torch
from torch import nn


class Player:
    def __init__(self, number, leaves_at, device):
        self.number = number
        self.leaves_at = leaves_at
        self.state = torch.zeros(1, 128, device=device)
        self.inventory = torch.randn(40, 32, device=device)


class Npc(nn.Module):
    """Answers what a character does about a player."""

    def __init__(self):
        super().__init__()
        self.look = nn.Linear(32, 64)
        self.remember = nn.GRUCell(64, 128)
        self.act = nn.Linear(128, 20)

    def forward(self, state, inventory):
        seen = torch.relu(self.look(inventory)).mean(dim=0, keepdim=True)
        state = self.remember(seen, state)
        return state, self.act(state)


class World:
    def __init__(self, device, rng):
        self.device = device
        self.rng = rng
        self.npc = Npc().to(device)
        self.players = {}
        self.joined = 0

    @torch.no_grad()
    def tick(self, now, wanted):
        for number in [number for number, player in self.players.items() if player.leaves_at <= now]:
            del self.players[number]
        while len(self.players) < wanted:
            self.players[self.joined] = Player(self.joined, now + self.rng.randint(20, 80), self.device)
            self.joined += 1
        active = self.rng.sample(list(self.players.values()), min(5, len(self.players)))
        for player in active:
            player.state, _action = self.npc(player.state, player.inventory)


def main():
    torch.manual_seed(87)
    torch.set_num_threads(1)
    world = World(sys.argv[1], random.Random(87))
    ticks, most = 500, 0
    for now in range(ticks):
        wanted = int(60 * max(0.0, math.sin(math.pi * now / (0.85 * ticks))))
        world.tick(now, wanted)
        most = max(most, len(world.players))
    print(f"{world.joined} players joined, {most} at most, {len(world.players)} left")


if __name__ == "__main__":
    main()
