import random
from dataclasses import dataclass, field

import torch


class StudyError(Exception):
    pass


@dataclass
class Study:
    uid: str
    shape: tuple
    vendor: str
    tags: dict = field(default_factory=dict)

    def pixels(self):
        return torch.zeros(self.shape, dtype=torch.int16)

    def spacing(self):
        if "PixelSpacing" not in self.tags:
            raise StudyError(f"{self.uid}: tag PixelSpacing not present ({self.vendor})")
        return tuple(float(v) for v in self.tags["PixelSpacing"])


def incoming(count, seed):
    rng = random.Random(seed)
    for i in range(count):
        shape = rng.choice([(64, 112, 112), (72, 128, 128), (56, 144, 144)])
        vendor = rng.choice(["Carestream", "Planmeca", "Sirona", "Vatech"])
        tags = {"Modality": "CT", "PixelSpacing": (0.3, 0.3, 0.3)}
        if vendor == "Vatech" and rng.random() < 0.7:
            del tags["PixelSpacing"]
        yield Study(f"1.2.840.{i:04d}", shape, vendor, tags)
