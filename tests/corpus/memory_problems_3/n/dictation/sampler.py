import random


class FrameBudgetSampler:
    """Groups utterances with transcripts of similar length into batches of about `max_frames`."""

    def __init__(self, manifest, max_frames, seed=0):
        self.manifest = manifest
        self.max_frames = max_frames
        self.seed = seed
        self.batches = self._build()

    def _build(self):
        order = sorted(range(len(self.manifest)), key=lambda i: self.manifest[i].tokens)
        batches, current, frames = [], [], 0
        for index in order:
            length = self.manifest[index].frames
            if current and frames + length > self.max_frames:
                batches.append(current)
                current, frames = [], 0
            current.append(index)
            frames += length
        if current:
            batches.append(current)
        random.Random(self.seed).shuffle(batches)
        return batches

    def __iter__(self):
        return iter(self.batches)

    def __len__(self):
        return len(self.batches)
