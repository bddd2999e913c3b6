"""Live transcription for a call centre: calls begin and end all the time, a few dozen run at once."""
import argparse
import random

import torch

from speech_service.recogniser import Recogniser
from speech_service.sessions import SessionManager


class CallSimulator:
    """Replays the traffic of a morning: (event, call, audio) in the order of the gateway."""

    def __init__(self, calls, concurrent, seed=21):
        self.calls, self.concurrent = calls, concurrent
        self.rng = random.Random(seed)
        self.audio = torch.rand(1, 80, 80)

    def events(self):
        remaining, live, started = {}, [], 0
        while started < self.calls or live:
            while len(live) < self.concurrent and started < self.calls:
                call = f"call-{started:05d}"
                remaining[call] = self.rng.randint(3, 10)
                live.append(call)
                started += 1
                yield "open", call, None
            call = self.rng.choice(live)
            yield "audio", call, self.audio
            remaining[call] -= 1
            if remaining[call] == 0:
                live.remove(call)
                yield "close", call, None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--concurrent", type=int, default=24)
    args = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda")
    sessions = SessionManager(Recogniser().to(device).eval(), device)
    transcribed = 0
    for event, call, audio in CallSimulator(args.calls, args.concurrent).events():
        if event == "open":
            sessions.open(call)
        elif event == "audio":
            sessions.feed(call, audio)
        else:
            transcribed += 1
            tokens = sessions.close(call)
            if transcribed % 50 == 0:
                print(f"{transcribed} calls transcribed, {sessions.active()} active, last had {len(tokens)} tokens")


if __name__ == "__main__":
    main()
