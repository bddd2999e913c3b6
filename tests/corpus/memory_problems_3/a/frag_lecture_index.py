"""Builds an index of lecture recordings: frame features are made by a network, a summary of each recording is kept."""
from collections import namedtuple

import torch
from torch import nn

Recording = namedtuple("Recording", "title seconds")
Entry = namedtuple("Entry", "title summary")


class FrameEncoder(nn.Module):
    def __init__(self, inputs=192, width=2048):
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, frames):
        return self.norm(self.second(torch.relu_(self.first(frames))))


class Summarizer(nn.Module):
    """A fixed number of learned queries attend over all frames."""

    def __init__(self, width=2048, queries=170):
        super().__init__()
        self.queries = nn.Parameter(torch.randn(queries, width) * 0.02)

    def forward(self, features):
        weights = (self.queries @ features.t()).softmax(dim=-1)
        return weights @ features


class Indexer:
    def __init__(self, device):
        self.device = device
        self.encoder = FrameEncoder().to(device).eval()
        self.summarizer = Summarizer().to(device).eval()
        self.entries = []

    def frames(self, recording):
        return torch.zeros(recording.seconds * 8, 192, dtype=torch.float16)

    @torch.inference_mode()
    def add(self, recording):
        frames = self.frames(recording).to(self.device).float()
        features = self.encoder(frames)
        summary = self.summarizer(features)
        self.entries.append(Entry(recording.title, summary))

    @torch.inference_mode()
    def search(self, text, count=5):
        query = torch.zeros(2048, device=self.device)
        query[: len(text)] = 1.0
        scores = torch.stack([(entry.summary @ query).max() for entry in self.entries])
        best = scores.topk(count).indices.tolist()
        return [self.entries[index % len(self.entries)].title for index in best]


def catalogue(count=130):
    recordings = [Recording(f"lecture {number:03d}", 300 + (number * 977) % 5100) for number in range(count)]
    return sorted(recordings, key=lambda recording: recording.seconds)


def main():
    indexer = Indexer(torch.device("cuda"))
    for number, recording in enumerate(catalogue()):
        indexer.add(recording)
        if number % 13 == 0:
            print(f"{number:3d} {recording.title}: {recording.seconds} s, allocated {torch.cuda.memory_allocated() >> 20}, "
                  f"reserved {torch.cuda.memory_reserved() >> 20} MiB")
    print(indexer.search("proof of convergence"))


if __name__ == "__main__":
    main()
