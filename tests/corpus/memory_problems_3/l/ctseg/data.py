import numpy as np
import torch

ORGANS = [
    "background", "spleen", "kidney_r", "kidney_l", "gallbladder", "esophagus", "liver", "stomach",
    "aorta", "vena_cava", "portal_vein", "pancreas", "adrenal_r", "adrenal_l", "duodenum",
]


class AbdomenCT:
    """CT studies as (slices, 512, 512), Hounsfield units clipped and scaled to [0, 1]."""

    def __init__(self, n_studies, slices, seed):
        self.rng = np.random.default_rng(seed)
        self.slices = slices
        self.studies = [f"study_{i:03d}" for i in range(n_studies)]

    def volume(self, index):
        depth = self.slices[index % len(self.slices)]
        image = torch.zeros(depth, 512, 512, dtype=torch.float16)
        label = torch.zeros(depth, 512, 512, dtype=torch.uint8)
        block = depth // len(ORGANS)
        for organ in range(1, len(ORGANS)):
            label[organ * block:(organ + 1) * block, 128:384, 128:384] = organ
        return image, label

    def patches(self, batch, size):
        image = torch.from_numpy(self.rng.random((batch, 1, *size), dtype=np.float32))
        label = torch.from_numpy(self.rng.integers(0, len(ORGANS), (batch, *size)))
        return image, label
