"""Chat backend: replays a day's conversations against the model, several users at a time."""
import argparse
import itertools
import logging
import random

import torch

from chatserve.model import ChatModel
from chatserve.sessions import SessionManager

log = logging.getLogger("chat")


class User:
    """Sends a few messages, then leaves."""

    counter = itertools.count()

    def __init__(self, rng):
        self.id = f"user-{next(self.counter):05d}"
        self.messages = [rng.randint(8, 90) for _ in range(rng.randint(1, 4))]
        self.rng = rng

    def next_message(self):
        length = self.messages.pop(0)
        return torch.tensor([self.rng.randrange(32000) for _ in range(length)])

    @property
    def finished(self):
        return not self.messages


class Backend:
    def __init__(self, device, max_tokens, answer_tokens):
        self.device = device
        self.model = ChatModel().to(device, torch.float16).eval()
        self.manager = SessionManager(self.model, max_tokens)
        self.answer_tokens = answer_tokens

    @torch.inference_mode()
    def reply(self, session_id, tokens):
        session = self.manager.open(session_id)
        session.turns += 1
        ids = tokens.to(self.device)
        answer = []
        for _ in range(self.answer_tokens):
            scores = self.model(ids, session.cache)
            ids = scores.argmax(-1, keepdim=True).clamp(0, 31999)
            answer.append(ids)
        return torch.cat(answer).tolist()

    def disconnect(self, session_id):
        session = self.manager.close(session_id)
        log.debug("%s left after %d turns, %d tokens", session_id, session.turns, session.cache.length)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--concurrent", type=int, default=12)
    ap.add_argument("--rounds", type=int, default=160)
    ap.add_argument("--max-tokens", type=int, default=768)
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)

    rng = random.Random(4)
    backend = Backend("cuda", args.max_tokens, answer_tokens=3)
    users = [User(rng) for _ in range(args.concurrent)]
    for round_ in range(args.rounds):
        user = users[round_ % args.concurrent]
        backend.reply(user.id, user.next_message())
        if user.finished:
            backend.disconnect(user.id)
            users[round_ % args.concurrent] = User(rng)
        if round_ % 20 == 0:
            log.info("round %d: %d active conversations", round_, backend.manager.active)


if __name__ == "__main__":
    main()
