"""Streaming piano accompaniment for several players at once.

The generator runs ahead in its own thread and queues latent frames; the main
thread turns them into audio as they come and hands the chunks to the players.

    python report_accompaniment_stream.py cuda
"""
import queue
import sys
import threading

import torch

from report_accompaniment_stream_pkg.codec import CodecDecoder
from report_accompaniment_stream_pkg.generator import LatentGenerator

END = object()


class AccompanimentModel:
    def __init__(self, device):
        self.device = device
        self.generator = LatentGenerator().to(device).eval()
        self.codec = CodecDecoder().to(device).eval()

    def _generate(self, lead, frames, temperature, out):
        try:
            caches, latent = self.generator.prompt(lead)
            for _ in range(frames):
                latent, caches = self.generator.step(latent, caches)
                latent = latent + temperature * torch.randn_like(latent)
                out.put(latent)
        finally:
            out.put(END)

    @torch.no_grad()
    def stream(self, lead, frames, temperature=0.3, chunk=4):
        """Yield (players, samples) audio chunks for a (players, steps) lead melody."""
        latents = queue.Queue()
        worker = threading.Thread(
            target=self._generate, args=(lead.to(self.device), frames, temperature, latents), daemon=True
        )
        worker.start()
        pending = []
        while (latent := latents.get()) is not END:
            pending.append(latent)
            if len(pending) == chunk:
                yield self.codec(torch.cat(pending, dim=1)).cpu()
                pending = []
        if pending:
            yield self.codec(torch.cat(pending, dim=1)).cpu()
        worker.join()


class Player:
    """Collects the samples of one connection."""

    def __init__(self):
        self.samples = 0
        self.level = 0.0

    def feed(self, audio):
        self.samples += audio.shape[-1]
        self.level = max(self.level, audio.abs().max().item())


def lead_melodies(sessions, players, steps=48, seed=8):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(sessions):
        yield torch.randint(40, 90, (players, steps), generator=generator)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    model = AccompanimentModel(device)
    for session, lead in enumerate(lead_melodies(sessions=2, players=24)):
        players = [Player() for _ in lead]
        for audio in model.stream(lead, frames=32):
            for player, samples in zip(players, audio):
                player.feed(samples)
        seconds = players[0].samples / 24000
        print(f"session {session}: {len(players)} players, {seconds:.1f} s, peak level {players[0].level:.2f}")


if __name__ == "__main__":
    main()
