from collections import deque

import torch


class Track:
    def __init__(self, ident, memory):
        self.ident = ident
        self.templates = deque(maxlen=memory)
        self.embedding = None
        self.last_seen = -1

    def update(self, frame_no, crop, embedding, score):
        self.last_seen = frame_no
        self.embedding = embedding if self.embedding is None else 0.9 * self.embedding + 0.1 * embedding
        if score > 0.96:
            self.templates.append(crop)


class TrackTable:
    def __init__(self, memory=8, patience=90):
        self.memory = memory
        self.patience = patience
        self.tracks = {}

    def get(self, ident):
        if ident not in self.tracks:
            self.tracks[ident] = Track(ident, self.memory)
        return self.tracks[ident]

    def expire(self, frame_no):
        for ident in [i for i, t in self.tracks.items() if frame_no - t.last_seen > self.patience]:
            del self.tracks[ident]

    def bank(self):
        return torch.stack([t.embedding for t in self.tracks.values()])

    def template_count(self):
        return sum(len(t.templates) for t in self.tracks.values())
