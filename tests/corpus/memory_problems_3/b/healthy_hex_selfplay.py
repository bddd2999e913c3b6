"""Self-play training of a Hex player on an 11 x 11 board."""
import random

import torch
from torch import nn
import torch.nn.functional as F

from selfplay_store import PositionStore

SIZE, PLANES = 11, 8


class HexNet(nn.Module):
    def __init__(self, width=96, depth=5):
        super().__init__()
        self.stem = nn.Conv2d(PLANES, width, 3, padding=1)
        self.tower = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
            for _ in range(depth))
        self.policy = nn.Linear(width * SIZE * SIZE, SIZE * SIZE + 1)
        self.value = nn.Linear(width, 1)

    def forward(self, boards):
        x = F.relu(self.stem(boards))
        for block in self.tower:
            x = x + block(x)
        return self.policy(x.flatten(1)), torch.tanh(self.value(x.mean(dim=(2, 3)))).squeeze(1)


class Arena:
    """Plays games in parallel, all of the same length drawn per round."""

    def __init__(self, net, games, rng, device):
        self.net, self.games, self.rng, self.device = net, games, rng, device

    @torch.inference_mode()
    def play(self):
        self.net.eval()
        boards = torch.zeros(self.games, PLANES, SIZE, SIZE, device=self.device)
        seen, policies = [], []
        for move in range(self.rng.randint(30, 60)):
            logits, _ = self.net(boards)
            policies.append(logits.softmax(dim=1))
            seen.append(boards.half())
            boards = boards.roll(1, dims=1)
            boards[:, 0, move % SIZE, move // SIZE] = 1
        outcome = torch.tensor([self.rng.choice([-1.0, 1.0]) for _ in range(self.games)]).to(self.device)
        return torch.cat(seen), torch.cat(policies), outcome.repeat(len(seen))


class Learner:
    def __init__(self, net, store, rng):
        self.net, self.store, self.rng = net, store, rng
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)

    def improve(self, steps, batch):
        self.net.train()
        for _ in range(steps):
            boards, policy, value = self.store.sample(self.rng, batch)
            logits, predicted = self.net(boards)
            loss = F.mse_loss(predicted, value) - (policy * logits.log_softmax(dim=1)).sum(dim=1).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()


def main(rounds=40):
    torch.manual_seed(0)
    rng = random.Random(0)
    device = torch.device("cuda")
    net = HexNet().to(device)
    store = PositionStore(chunks=10, positions=16384, planes=PLANES, size=SIZE, device=device)
    arena, learner = Arena(net, 128, rng, device), Learner(net, store, rng)
    for number in range(rounds):
        store.add(*arena.play())
        loss = learner.improve(steps=8, batch=256)
        if number % 4 == 3:
            print(f"round {number + 1}: {len(store)} positions, loss {loss:.3f}, "
                  f"{torch.cuda.memory_allocated() >> 20} MiB", flush=True)


if __name__ == "__main__":
    main()
