"""Next-track suggestions: each listener has a recurrent state that follows the session."""
import random
import threading
import queue
import time

import torch
from torch import nn

TRACKS, WIDTH, LISTENERS = 20_000, 512, 300


class SessionModel(nn.Module):
    def __init__(self, layers=3):
        super().__init__()
        self.tracks = nn.Embedding(TRACKS, WIDTH)
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(layers))
        self.taste = nn.Linear(WIDTH, 256 * WIDTH // 8, bias=False)

    def fresh(self, device):
        return [torch.zeros(1, WIDTH, device=device) for _ in self.cells], torch.zeros(256, WIDTH // 8, device=device)

    def forward(self, track, state):
        hidden, profile = state
        x = self.tracks(track)
        following = []
        for cell, h in zip(self.cells, hidden):
            x = cell(x, h)
            following.append(x)
        profile = profile.lerp(self.taste(x).view(256, WIDTH // 8), 0.05)
        return x @ self.tracks.weight.T, (following, profile)


class Suggester:
    def __init__(self, model, device):
        self.model, self.device = model.eval(), device
        self.sessions = {}

    @torch.inference_mode()
    def played(self, listener, track):
        state = self.sessions.get(listener)
        if state is None:
            state = self.model.fresh(self.device)
        scores, self.sessions[listener] = self.model(torch.tensor([track]).to(self.device), state)
        return scores.topk(10).indices.cpu().flatten().tolist()


def listeners(events, number, count, seed):
    rng = random.Random(seed)
    for _ in range(count):
        events.put((int(LISTENERS * rng.random() ** 1.5), rng.randrange(TRACKS)))
        if rng.random() < 0.02:
            time.sleep(0.001)
    events.put(None)


def main(sources=4, per_source=900):
    torch.manual_seed(0)
    device = torch.device("cuda")
    suggester = Suggester(SessionModel().to(device), device)
    events = queue.Queue(maxsize=256)
    threads = [threading.Thread(target=listeners, args=(events, n, per_source, 40 + n)) for n in range(sources)]
    for thread in threads:
        thread.start()
    served, open_sources = 0, sources
    while open_sources:
        event = events.get()
        if event is None:
            open_sources -= 1
            continue
        suggester.played(*event)
        served += 1
        if served % 400 == 0:
            print(f"{served} plays, {len(suggester.sessions)} of {LISTENERS} listeners, "
                  f"{torch.cuda.memory_allocated() / 2**20:.1f} MiB", flush=True)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
