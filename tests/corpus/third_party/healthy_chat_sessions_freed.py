"""A chat server that keeps keys and values per session and drops them however the request ends."""

import contextlib
import random
import sys

import torch
from torch import nn


class Disconnected(Exception):
    pass


class KeyValueCache:
    def __init__(self):
        self.keys = []
        self.values = []

    def extend(self, key, value):
        self.keys.append(key)
        self.values.append(value)

    def tensors(self):
        return torch.cat(self.keys), torch.cat(self.values)


class Server:
    def __init__(self, device, width=48):
        self.device = device
        self.width = width
        self.project = nn.Linear(width, 3 * width).to(device)
        self.sessions = {}
        self.failures = 0

    @contextlib.contextmanager
    def session(self, number):
        self.sessions[number] = KeyValueCache()
        try:
            yield self.sessions[number]
        finally:
            del self.sessions[number]

    @torch.inference_mode()
    def answer(self, number, prompt, tokens, breaks_at):
        with self.session(number) as cache:
            _, key, value = self.project(torch.randn(prompt, self.width, device=self.device)).chunk(3, dim=-1)
            cache.extend(key, value)
            token = torch.randn(1, self.width, device=self.device)
            for position in range(tokens):
                query, key, value = self.project(token).chunk(3, dim=-1)
                cache.extend(key, value)
                keys, values = cache.tensors()
                token = torch.softmax(query @ keys.T, dim=-1) @ values
                if position == breaks_at:
                    raise Disconnected
            return token


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    rng = random.Random(1)
    server = Server(sys.argv[1])
    for number in range(150):
        breaks_at = rng.randint(0, 5) if rng.random() < 0.2 else None
        try:
            server.answer(number, rng.randint(10, 120), rng.randint(6, 20), breaks_at)
        except Disconnected:
            server.failures += 1
    print(server.failures, "failures,", len(server.sessions), "sessions open")


if __name__ == "__main__":
    main()
