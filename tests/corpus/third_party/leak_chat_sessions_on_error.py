"""A chat server that keeps keys and values per session and drops them when the answer is complete.

When a client disconnects in the middle, the handler leaves by an exception and the session stays in the table.
"""

import random
import sys

import torch
from torch import nn


class Disconnected(Exception):
    pass


class Session:
    def __init__(self, prompt_length, width, device):
        self.keys = torch.randn(prompt_length, width, device=device)
        self.values = torch.randn(prompt_length, width, device=device)


class ChatServer:
    def __init__(self, device, width=64):
        self.width = width
        self.device = device
        self.project = nn.Linear(width, 3 * width).to(device)
        self.sessions = {}

    def decode(self, session, token):
        query, key, value = self.project(token).chunk(3, dim=-1)
        session.keys = torch.cat([session.keys, key])  # LEAK
        session.values = torch.cat([session.values, value])  # LEAK
        weights = torch.softmax(query @ session.keys.T / self.width**0.5, dim=-1)
        return weights @ session.values

    @torch.inference_mode()
    def answer(self, session_id, prompt_length, tokens, hangs_up_after):
        session = self.sessions[session_id] = Session(prompt_length, self.width, self.device)  # LEAK
        token = torch.randn(1, self.width, device=self.device)
        for position in range(tokens):
            if position == hangs_up_after:
                raise Disconnected(session_id)
            token = self.decode(session, token)
        del self.sessions[session_id]
        return token


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rng = random.Random(0)
    server = ChatServer(sys.argv[1])
    lost = 0
    for session_id in range(160):
        tokens = rng.randint(8, 24)
        hangs_up_after = rng.randint(1, 7) if rng.random() < 0.15 else None
        try:
            server.answer(session_id, rng.randint(20, 200), tokens, hangs_up_after)
        except Disconnected:
            lost += 1
    print(f"{lost} clients hung up")


if __name__ == "__main__":
    main()
