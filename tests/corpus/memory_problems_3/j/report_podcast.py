"""Build a search index over podcast episodes and answer a few spoken queries."""
import sys
import time

import torch

from soundindex import SegmentEncoder, SegmentIndex

MELS, FRAMES = 80, 2400


class Library:
    def __init__(self, episodes, segments, seed=23):
        self.episodes, self.segments = episodes, segments
        self.rng = torch.Generator().manual_seed(seed)

    def batches(self, size):
        for episode in range(self.episodes):
            for start in range(0, self.segments, size):
                count = min(size, self.segments - start)
                keys = [(episode, start + i) for i in range(count)]
                yield keys, torch.rand(count, MELS, FRAMES, generator=self.rng)

    def spoken_queries(self, count):
        for _ in range(count):
            yield torch.rand(1, MELS, FRAMES // 4, generator=self.rng)


class Indexer:
    def __init__(self, device, width=512):
        self.device = device
        self.encoder = SegmentEncoder(MELS, width).to(device).eval()
        self.index = SegmentIndex(width)

    def normalize(self, mel):
        mel = mel.to(self.device)
        return (mel - mel.mean(2, keepdim=True)) / (mel.std(2, keepdim=True) + 1e-5)

    def build(self, library, size=12):
        done = -1
        start = time.time()
        for keys, mel in library.batches(size):
            self.index.add(keys, self.encoder.embed(self.normalize(mel)))
            if keys[0][0] != done:
                done = keys[0][0]
                print(f"episode {done}: {len(self.index)} segments, {time.time() - start:.1f}s")

    def ask(self, mel, top=3):
        return self.index.query(self.encoder.embed(self.normalize(mel))[0], top)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.manual_seed(5)
    library = Library(episodes=8, segments=48)
    indexer = Indexer(device)
    indexer.build(library)
    for number, mel in enumerate(library.spoken_queries(3)):
        hits = indexer.ask(mel)
        print(f"query {number}: " + ", ".join(f"episode {e} segment {s}" for e, s in hits))


if __name__ == "__main__":
    main()
