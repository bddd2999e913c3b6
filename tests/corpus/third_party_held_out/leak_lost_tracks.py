"""Tracks people in a video: each track has a gallery of at most ten appearances, to recognise somebody who comes back.

A track that leaves the picture is marked as lost and stays, with its gallery.
At the end the tracker is closed and frees all.
"""

import random
import sys

import torch
from torch import nn


class Track:
    def __init__(self, identity, leaves_at):
        self.identity = identity
        self.leaves_at = leaves_at
        self.gallery = []
        self.lost = False

    def see(self, appearance, limit=10):
        self.gallery.append(appearance)  # LEAK
        if len(self.gallery) > limit:
            self.gallery.pop(0)


class Tracker:
    def __init__(self, device):
        self.device = device
        self.network = nn.Sequential(
            nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, 256)
        ).to(device)
        self.tracks = []

    def active(self):
        return [track for track in self.tracks if not track.lost]

    def update(self, frame, arrivals):
        self.tracks.extend(arrivals)
        for track in self.active():
            if frame >= track.leaves_at:
                track.lost = True
                continue
            crop = torch.rand(1, 3, 32, 32, device=self.device)
            appearance = nn.functional.normalize(self.network(crop), dim=-1)  # LEAK
            track.see(appearance)

    def close(self):
        self.tracks.clear()


def main():
    torch.manual_seed(33)
    torch.set_num_threads(1)
    rng = random.Random(33)
    tracker = Tracker(sys.argv[1])
    people = 0
    with torch.no_grad():
        for frame in range(600):
            arrivals = []
            if rng.random() < 0.35:
                arrivals.append(Track(people, frame + rng.randint(4, 16)))
                people += 1
            tracker.update(frame, arrivals)
    print(f"{people} people, {len(tracker.active())} in the last picture")
    tracker.close()


if __name__ == "__main__":
    main()
