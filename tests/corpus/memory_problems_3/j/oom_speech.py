"""Aligns court recordings with their transcripts and writes a quality report."""
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import torch

from asrtools.align import AlignmentError, align
from asrtools.corpus import load_hearings
from asrtools.encoder import AcousticModel

N_PIECES = 2000
N_HEARINGS = 130


@dataclass
class Report:
    aligned: dict = field(default_factory=dict)
    rejected: list = field(default_factory=list)

    def summary(self):
        lines = [f"{len(self.aligned)} aligned, {len(self.rejected)} rejected"]
        reasons = Counter(type(error).__name__ for _, error in self.rejected)
        lines += [f"  {reason}: {count}" for reason, count in reasons.most_common()]
        lines += [f"  {name}: {error}" for name, error in self.rejected[:5]]
        return "\n".join(lines)


class Aligner:
    def __init__(self, device):
        self.device = device
        self.model = AcousticModel(N_PIECES).to(device).eval()

    @torch.inference_mode()
    def process(self, hearing):
        mel = hearing.mel().to(self.device)
        emissions = self.model(mel)[0]
        score, path = align(emissions, hearing.pieces(N_PIECES))
        return float(score), path.cpu()


def run(aligner, hearings):
    report = Report()
    started = time.time()
    for number, hearing in enumerate(hearings, 1):
        try:
            score, path = aligner.process(hearing)
        except AlignmentError as error:
            report.rejected.append((hearing.name, error))
        else:
            report.aligned[hearing.name] = (score, len(path))
        if number % 10 == 0:
            print(f"{number}/{len(hearings)} hearings, {time.time() - started:.1f} s", flush=True)
    return report


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(41)
    hearings = load_hearings(N_HEARINGS, seed=41)
    print(f"{len(hearings)} hearings, {sum(h.n_frames for h in hearings) / 360_000:.1f} hours", flush=True)
    report = run(Aligner(device), hearings)
    print(report.summary())


if __name__ == "__main__":
    main()
