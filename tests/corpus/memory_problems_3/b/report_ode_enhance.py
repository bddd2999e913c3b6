"""Enhances a folder of narrow-band recordings to 48 kHz with a flow-matching model."""
import random
import time

import torch

from flow_enhance.network import VectorField
from flow_enhance.solver import FlowSolver

SAMPLE_RATE = 48000
HOP = 512
BINS = 513


class Recording:
    def __init__(self, name, session, seconds):
        self.name = name
        self.session = session
        self.seconds = seconds

    def load(self):
        narrow = torch.rand(1, 1, int(self.seconds * 16000)) - 0.5
        return torch.nn.functional.interpolate(narrow, scale_factor=SAMPLE_RATE / 16000, mode="linear")[0, 0]


def scan_folder(sessions=4, per_session=10, seed=7):
    rng = random.Random(seed)
    for session in range(sessions):
        for take in range(per_session):
            yield Recording(f"s{session:02d}_t{take:03d}.wav", session, rng.uniform(14.0, 20.0))


class Enhancer:
    def __init__(self, device, steps=10):
        self.device = device
        self.field = VectorField(bins=BINS).to(device).eval()
        self.solver = FlowSolver(self.field, steps=steps)
        self.window = torch.hann_window(2 * (BINS - 1), device=device)

    def spectrum(self, wav):
        frames = wav.numel() // HOP + 1
        padded = torch.zeros(1, 2 * BINS, frames, device=self.device)
        padded[:, :, 0] = wav[:1].to(self.device)
        return padded

    def enhance(self, wav):
        condition = self.spectrum(wav)
        noise = torch.randn_like(condition)
        return self.solver.simulate(noise, condition)


class SessionWriter:
    """Loudness is normalised over a whole session, so its takes are written together."""

    def __init__(self):
        self.takes = {}

    def add(self, recording, spectrum):
        self.takes[recording.name] = spectrum

    def flush(self):
        gain = max(float(s.abs().amax()) for s in self.takes.values())
        frames = sum(s.shape[-1] for s in self.takes.values())
        print(f"writing {len(self.takes)} takes, {frames * HOP / SAMPLE_RATE:.0f} s, gain {gain:.3f}")


def main():
    torch.manual_seed(0)
    device = torch.device("cuda")
    enhancer = Enhancer(device)
    writer = SessionWriter()
    started = time.perf_counter()
    for index, recording in enumerate(scan_folder()):
        spectrum = enhancer.enhance(recording.load())
        writer.add(recording, spectrum)
        if index % 10 == 9:
            print(f"{index + 1} files, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    writer.flush()
    print(f"done in {time.perf_counter() - started:.1f} s")


if __name__ == "__main__":
    main()
