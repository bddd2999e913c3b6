"""Extracts features of audio clips on a thread pool; the futures of failed clips are kept for a summary at the end.

A future keeps its exception, the exception its traceback, and that the frames with their spectrograms.
"""

import concurrent.futures
import random
import sys

import torch
from torch import nn


class SilentClip(ValueError):
    pass


class FeatureExtractor:
    def __init__(self, device):
        self.device = device
        self.window = torch.hann_window(256, device=device)
        self.encoder = nn.Sequential(nn.Conv1d(129, 32, 3, stride=2), nn.ReLU(), nn.Conv1d(32, 32, 3, stride=2), nn.ReLU()).to(device)

    def spectrogram(self, clip):
        frames = clip.unfold(0, 256, 64) * self.window
        return torch.fft.rfft(frames).abs().log1p().T.contiguous()  # LEAK

    @torch.no_grad()
    def extract(self, clip):
        clip = clip.to(self.device)  # LEAK
        spectrum = self.spectrogram(clip)  # LEAK
        loudness = spectrum.mean(dim=0)  # LEAK
        if loudness.max().item() < 0.5:
            raise SilentClip(f"no sound in {len(clip)} samples")  # LEAK
        return self.encoder(spectrum.unsqueeze(0)).mean(dim=2).squeeze(0).cpu()


class Batch:
    def __init__(self, extractor, workers):
        self.extractor = extractor
        self.pool = concurrent.futures.ThreadPoolExecutor(workers)
        self.failed = {}

    def process(self, clips):
        pending = {name: self.pool.submit(self.extractor.extract, clip) for name, clip in clips}  # LEAK
        features = {}
        for name, future in pending.items():
            if future.exception() is not None:
                self.failed[name] = future  # LEAK
            else:
                features[name] = future.result()
        return features

    def summary(self):
        self.pool.shutdown()
        return [f"{name}: {future.exception()}" for name, future in self.failed.items()]


def record(rng, generator):
    samples = rng.randint(3000, 9000)
    volume = 0.001 if rng.random() < 0.15 else 0.5
    return volume * torch.randn(samples, generator=generator)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(17)
    torch.set_num_threads(1)
    rng = random.Random(17)
    generator = torch.Generator().manual_seed(17)
    batch = Batch(FeatureExtractor(device), workers=2)
    done = 0
    for hour in range(500):
        done += len(batch.process([(f"{hour:03}-{i}", record(rng, generator)) for i in range(6)]))  # LEAK
    print(f"{done} clips done, {len(batch.summary())} failed")


if __name__ == "__main__":
    main()
