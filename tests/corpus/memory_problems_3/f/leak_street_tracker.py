"""Pedestrian tracking on a street camera with appearance galleries."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

from mot.track import Track


class ReidNet(nn.Module):
    def __init__(self, channels=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, channels, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1))

    def forward(self, crops):
        return F.normalize(self.net(crops), dim=1)


class Camera:
    """Synthetic street: people walk in, stay for a while and leave the picture."""

    def __init__(self, n_frames, seed):
        self.rng = random.Random(seed)
        self.n_frames = n_frames
        self.people = {}
        self.counter = 0

    def __iter__(self):
        for frame in range(self.n_frames):
            for pid in [p for p, until in self.people.items() if until < frame]:
                del self.people[pid]
            while len(self.people) < 8:
                self.counter += 1
                self.people[self.counter] = frame + self.rng.randint(5, 25)
            yield frame, torch.rand(3, 384, 640), sorted(self.people)


class Tracker:
    def __init__(self, reid, max_age=3):
        self.reid = reid
        self.max_age = max_age
        self.active = []
        self.assigned = {}
        self.finished = 0

    def crops(self, image, n):
        xs = [(37 * i) % (640 - 64) for i in range(n)]
        return torch.stack([image[:, 100:228, x:x + 64] for x in xs])

    @torch.no_grad()
    def update(self, frame, image, people):
        features = self.reid(self.crops(image, len(people)))
        for track in self.active:
            track.cost = track.distance(features)
        for i, pid in enumerate(people):
            box = (37 * i % 576, 100, 64, 128)
            if pid in self.assigned:
                Track.lookup(self.assigned[pid]).update(box, features[i], frame)
            else:
                track = Track(box, features[i], frame)
                self.active.append(track)
                self.assigned[pid] = track.track_id
        alive = [t for t in self.active if frame - t.last_frame <= self.max_age]
        self.finished += len(self.active) - len(alive)
        self.active = alive
        return len(self.active)


def main():
    torch.manual_seed(0)
    tracker = Tracker(ReidNet().cuda().eval())
    for frame, image, people in Camera(n_frames=240, seed=6):
        n = tracker.update(frame, image.cuda(), people)
        if frame % 60 == 59:
            print(f"frame {frame + 1}: {n} active, {tracker.finished} finished")


if __name__ == "__main__":
    main()
