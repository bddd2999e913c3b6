"""Hands out one full frame per training step."""
import random


class FullFrameManager:
    def __init__(self, frames, device, seed=0):
        self.device = device
        self.rng = random.Random(seed)
        self.cached_train = [frames.load(index) for index in range(len(frames))]
        self.unseen = []

    def _pop_index(self):
        if not self.unseen:
            self.unseen = list(range(len(self.cached_train)))
            self.rng.shuffle(self.unseen)
        return self.unseen.pop()

    def next_train(self):
        data = self.cached_train[self._pop_index()]
        data["image"] = data["image"].to(self.device)
        data["camera_to_world"] = data["camera_to_world"].to(self.device)
        return data
