from dataclasses import dataclass

import numpy as np
import torch


class SceneRejected(Exception):
    pass


@dataclass
class Scene:
    name: str
    cloud_cover: float
    sun_elevation: float
    size: int = 1536
    bands: int = 10

    def read(self):
        return torch.zeros(self.bands, self.size, self.size, dtype=torch.int16)


def list_scenes(count, seed):
    rng = np.random.default_rng(seed)
    return [
        Scene(f"T32UQD_{20240101 + i}", float(rng.beta(2, 3)), float(rng.uniform(12, 60)))
        for i in range(count)
    ]
