"""Nightly batch service: runs nodule detection over a queue of chest CT studies."""
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


@dataclass
class Study:
    accession: str
    volume: np.ndarray
    spacing: tuple
    orientation: str
    landmarks: dict


@dataclass
class Report:
    accession: str
    status: str
    candidates: Optional[torch.Tensor] = None
    reason: Optional[Exception] = None


class StudyRejected(Exception):
    pass


class NoduleNet(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv3d(1, width // 2, 2, stride=2), nn.ReLU(inplace=True),
            nn.Conv3d(width // 2, width // 2, (3, 1, 1), padding=(1, 0, 0)), nn.ReLU(inplace=True),
            nn.Conv3d(width // 2, width, 1), nn.ReLU(inplace=True))
        self.score = nn.Conv3d(width, 1, 1)

    def forward(self, x):
        features = self.encode(x)
        return features, self.score(features)


class Queue:
    def __init__(self, n, seed):
        self.rng = np.random.default_rng(seed)
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            depth = int(self.rng.integers(80, 110))
            volume = self.rng.integers(-1000, 400, (depth, 160, 160)).astype(np.int16)
            landmarks = {"carina": (depth // 2, 80, 80)}
            if i % 3 != 2:
                landmarks["apex"] = (4, 80, 80)
            yield Study(f"CT{20480 + i}", volume, (1.25, 0.8, 0.8), "LPS" if i % 5 else "RAS", landmarks)


@dataclass
class NightRun:
    model: nn.Module
    device: torch.device
    reports: list = field(default_factory=list)

    def prepare(self, study):
        volume = torch.from_numpy(study.volume).to(self.device).float()
        volume = volume.clamp(-1000, 400).add_(1000).div_(1400)
        if study.orientation == "RAS":
            volume = volume.flip(1, 2)
        scale = tuple(s / 0.8 for s in study.spacing)
        return F.interpolate(volume[None, None], scale_factor=scale, mode="trilinear", align_corners=False)

    def place(self, study, features, scores):
        """Keeps candidates between the lung apex and the carina."""
        if "apex" not in study.landmarks:
            raise StudyRejected(f"{study.accession}: no lung apex in {sorted(study.landmarks)}")
        top, bottom = study.landmarks["apex"][0], study.landmarks["carina"][0]
        window = scores[:, :, top // 2: max(bottom // 2, top // 2 + 8)]
        value, where = window.flatten().topk(50)
        profile = features.mean(dim=(2, 3, 4))
        return torch.cat([value, where.float(), profile.flatten()]).cpu()

    @torch.inference_mode()
    def analyse(self, study):
        volume = self.prepare(study)
        features, scores = self.model(volume)
        scores = torch.sigmoid(scores)
        return self.place(study, features, scores)

    def handle(self, study):
        try:
            candidates = self.analyse(study)
        except StudyRejected as problem:
            self.reports.append(Report(study.accession, "rejected", reason=problem))
        else:
            self.reports.append(Report(study.accession, "done", candidates=candidates))

    def summary(self):
        counts = Counter(report.status for report in self.reports)
        lines = [f"{status}: {count}" for status, count in sorted(counts.items())]
        lines += [f"  {report.reason}" for report in self.reports if report.reason is not None]
        return "\n".join(lines)


def main():
    device = torch.device(sys.argv[1])
    torch.manual_seed(64)
    run = NightRun(NoduleNet().to(device).eval(), device)
    for number, study in enumerate(Queue(n=48, seed=64), start=1):
        run.handle(study)
        if number % 8 == 0:
            print(f"{number} studies processed")
    print(run.summary())


if __name__ == "__main__":
    main()
