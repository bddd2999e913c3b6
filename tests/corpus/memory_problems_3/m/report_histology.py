"""Heat maps over whole slide images: one map per slide, written as a small thumbnail."""
import sys

import numpy as np
import torch

from slidecam.cam import LayerCam
from slidecam.network import TumorNet

CLASSES = ["stroma", "gland", "tumor", "necrosis", "lymph"]


class Slide:
    def __init__(self, name, n_tiles, tile=128, seed=0):
        self.name = name
        self.n_tiles = n_tiles
        self.tile = tile
        self.rng = np.random.default_rng(seed)

    def batches(self, size, device):
        for lo in range(0, self.n_tiles, size):
            n = min(size, self.n_tiles - lo)
            raw = self.rng.integers(0, 255, (n, self.tile, self.tile, 3), dtype=np.uint8)
            tiles = torch.from_numpy(raw).to(device).permute(0, 3, 1, 2).float()
            yield tiles.div_(127.5).sub_(1.0)


class Explainer:
    def __init__(self, model, device, batch_size=16):
        self.model = model
        self.device = device
        self.batch_size = batch_size

    def target_layers(self, detail):
        layers = [self.model.stage2, self.model.stage3]
        if detail == "fine":
            layers.insert(0, self.model.stage1)
        return layers

    def explain(self, slide, target, detail="coarse"):
        cam = LayerCam(self.model, self.target_layers(detail))
        rows, votes = [], torch.zeros(len(CLASSES))
        for tiles in slide.batches(self.batch_size, self.device):
            heat, logits = cam(tiles, target)
            thumbs = torch.nn.functional.avg_pool2d(heat, 16)
            rows.append(thumbs.squeeze(1).cpu().numpy())
            votes += logits.softmax(-1).mean(0).cpu()
        del cam
        return np.concatenate(rows), votes / votes.sum().clamp_min(1e-6)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(5)
    model = TumorNet(len(CLASSES)).to(device).eval()
    explainer = Explainer(model, device)
    slides = [Slide(f"TCGA-{i:03d}", n_tiles=48, seed=i) for i in range(10)]
    for i, slide in enumerate(slides):
        detail = "fine" if i % 3 == 2 else "coarse"
        heat, votes = explainer.explain(slide, CLASSES.index("tumor"), detail)
        used = torch.cuda.memory_allocated(device) >> 20
        print(f"{slide.name}: {heat.shape[0]} tiles, {detail}, tumor share {float(votes[2]):.2f}, GPU {used} MiB", flush=True)


if __name__ == "__main__":
    main()
