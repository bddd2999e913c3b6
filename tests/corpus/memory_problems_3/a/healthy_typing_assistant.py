"""Keyboard assistant: each user has a small adapter state on the GPU, which is updated as they type."""
import asyncio
import random

import torch
from torch import nn

USERS = 220


class UserState:
    """Recurrent state and a fast-weight matrix of one user."""

    def __init__(self, width, device):
        self.hidden = torch.zeros(1, width, device=device)
        self.fast = torch.zeros(width, width, device=device)
        self.words = 0


class Assistant(nn.Module):
    def __init__(self, vocabulary=8000, width=384):
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(vocabulary, width)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, vocabulary)

    @torch.no_grad()
    def suggest(self, state, word):
        x = self.embed(word)
        hidden = self.cell(x, state.hidden)
        adapted = hidden + hidden @ state.fast
        state.fast.mul_(0.99).addmm_(x.t(), hidden, alpha=0.01)
        state.hidden.copy_(hidden)
        state.words += 1
        return self.out(adapted).topk(3).indices.flatten().tolist()


class Keyboard:
    def __init__(self, device):
        self.device = device
        self.assistant = Assistant().to(device).eval()
        self.users = {}
        self.served = 0

    def state_of(self, user):
        if user not in self.users:
            self.users[user] = UserState(self.assistant.width, self.device)
        return self.users[user]

    async def typed(self, user, words):
        state = self.state_of(user)
        suggestions = []
        for word in words:
            suggestions.append(self.assistant.suggest(state, torch.tensor([word], device=self.device)))
            self.served += 1
            await asyncio.sleep(0)
        return suggestions


async def person(keyboard, arrivals, rng):
    while (user := await arrivals.get()) is not None:
        await keyboard.typed(user, [rng.randrange(8000) for _ in range(rng.randint(2, 5))])
    await arrivals.put(None)


async def main():
    rng = random.Random(21)
    keyboard = Keyboard(torch.device("cuda"))
    arrivals = asyncio.Queue(maxsize=16)
    people = [asyncio.create_task(person(keyboard, arrivals, rng)) for _ in range(6)]
    for number in range(1500):
        await arrivals.put(min(USERS - 1, int(rng.betavariate(1.2, 1.6) * USERS)))
        if number % 200 == 0:
            print(f"{number}: {len(keyboard.users)} users, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    await arrivals.put(None)
    await asyncio.gather(*people)
    print(f"{keyboard.served} words, {len(keyboard.users)} users, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")


if __name__ == "__main__":
    asyncio.run(main())
