"""A recommender with sessions; a session that was idle for 40 ticks should expire.

The sweep looks sessions up by the same method as the requests do, which marks them as used: none ever expires.
"""

import random
import sys

import torch
from torch import nn


class Session:
    def __init__(self, memory):
        self.memory = memory
        self.last_used = 0
        self.clicks = 0


class SessionStore:
    def __init__(self, idle_limit):
        self.idle_limit = idle_limit
        self.now = 0
        self._sessions = {}

    def get(self, user):
        session = self._sessions.get(user)
        if session is not None:
            session.last_used = self.now
        return session

    def put(self, user, session):
        session.last_used = self.now
        self._sessions[user] = session  # LEAK

    def sweep(self):
        for user in list(self._sessions):
            if self.now - self.get(user).last_used > self.idle_limit:
                del self._sessions[user]

    def __len__(self):
        return len(self._sessions)


class Recommender:
    def __init__(self, device, items=2000, width=32, slots=48):
        self.device = device
        self.items = nn.Embedding(items, width).to(device)
        self.cell = nn.GRUCell(width, width).to(device)
        self.slots = slots
        self.width = width
        self.store = SessionStore(idle_limit=40)

    @torch.inference_mode()
    def click(self, user, item):
        session = self.store.get(user)
        if session is None:
            session = Session(torch.zeros(self.slots, self.width, device=self.device))  # LEAK
            self.store.put(user, session)  # LEAK
        vector = self.items(torch.tensor([item], device=self.device))
        slot = session.clicks % self.slots
        session.memory[slot] = self.cell(vector, session.memory[slot - 1 : slot] if slot else None)[0]
        session.clicks += 1
        scores = self.items.weight @ session.memory.mean(dim=0)
        return scores.topk(5).indices.tolist()


def main():
    device = sys.argv[1]
    torch.manual_seed(20)
    torch.set_num_threads(1)
    rng = random.Random(20)
    recommender = Recommender(device)
    visitors = []
    newest = 0
    recommended = 0
    for tick in range(1800):
        recommender.store.now = tick
        if len(visitors) < 12 or rng.random() < 0.5:
            newest += 1
            visitors.append(newest)
        if len(visitors) > 12:
            visitors.pop(rng.randrange(len(visitors)))
        for user in rng.sample(visitors, min(4, len(visitors))):
            recommended += len(recommender.click(user, rng.randrange(2000)))  # LEAK
        if tick % 10 == 9:
            recommender.store.sweep()
    print(f"{recommended} recommendations, {len(recommender.store)} sessions of {newest} users")


if __name__ == "__main__":
    main()
