"""Phone centroids of an under-resourced language from a frozen speech encoder.

The ninth layer carries most of the phonetic information (layer-wise probing),
so segment means are taken from there.
"""
import sys
import time

import numpy as np
import torch

from phone_units import PhoneBook, SpeechEncoder

PHONETIC_LAYER = 9
BATCH = 16
FRAMES = 1600
SEGMENT = 100
PHONES = 37
BATCHES = 60


class FieldRecordings:
    """Log-mel frames of elicitation sessions with forced-aligned phone labels."""

    def __init__(self, batches, device, seed=13):
        self.batches = batches
        self.device = device
        self.rng = np.random.default_rng(seed)

    def __iter__(self):
        for _ in range(self.batches):
            envelope = self.rng.random((BATCH, FRAMES, 1), dtype=np.float32)
            tilt = np.linspace(1.0, 0.2, 80, dtype=np.float32)
            frames = torch.from_numpy(envelope * tilt)
            phones = self.rng.integers(0, PHONES, size=(BATCH, FRAMES // SEGMENT))
            yield frames.to(self.device), phones


class UnitExtractor:
    def __init__(self, device):
        torch.manual_seed(0)
        self.encoder = SpeechEncoder().to(device).eval()
        self.encoder.requires_grad_(False)

    @torch.inference_mode()
    def segment_means(self, frames):
        output = self.encoder(frames, output_hidden_states=True)
        features = output.hidden_states[PHONETIC_LAYER]
        batch, length, width = features.shape
        return features.view(batch, length // SEGMENT, SEGMENT, width).mean(dim=2)


def nearest_pairs(centroids, count=3):
    phones = sorted(centroids)
    table = np.stack([centroids[phone] for phone in phones])
    distance = ((table[:, None] - table[None]) ** 2).sum(-1)
    distance[np.tril_indices(len(phones))] = np.inf
    order = np.argsort(distance, axis=None)[:count]
    rows, cols = np.unravel_index(order, distance.shape)
    return [(phones[r], phones[c]) for r, c in zip(rows, cols)]


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    extractor = UnitExtractor(device)
    book = PhoneBook(PHONES)
    started = time.time()
    for index, (frames, phones) in enumerate(FieldRecordings(BATCHES, device)):
        book.add(extractor.segment_means(frames), phones)
        if index % 20 == 19:
            print(f"{index + 1} batches, {time.time() - started:.1f} s")
    print("closest phones:", nearest_pairs(book.centroids()))


if __name__ == "__main__":
    main()
