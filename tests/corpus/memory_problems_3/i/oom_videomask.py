"""Propagate the masks of a few prompted animals through a camera-trap clip."""
import sys
from collections import OrderedDict

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F


class FrameEncoder(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 16, stride=16)
        self.mix = nn.Sequential(nn.Conv2d(dim, dim, 3, padding=1), nn.GELU(), nn.Conv2d(dim, dim, 3, padding=1))
        self.lateral = nn.Conv2d(3, dim // 8, 4, stride=4)

    def forward(self, image):
        coarse = self.patch(image)
        return coarse + self.mix(coarse), self.lateral(image)


class MemoryAttention(nn.Module):
    def __init__(self, dim=256, mem_dim=64, heads=4):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(mem_dim, dim)
        self.v = nn.Linear(mem_dim, dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, feats, memory):
        n, c, h, w = feats.shape
        q = self.q(feats.flatten(2).transpose(1, 2))
        split = lambda t: t.view(n, -1, self.heads, c // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(split(q), split(self.k(memory)), split(self.v(memory)))
        y = self.out(y.transpose(1, 2).reshape(n, h * w, c))
        return feats + y.transpose(1, 2).view(n, c, h, w)


class MaskDecoder(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.up = nn.ConvTranspose2d(dim, dim // 8, 4, stride=4)
        self.head = nn.Conv2d(dim // 8, 1, 3, padding=1)

    def forward(self, feats, fine):
        return self.head(F.gelu(self.up(feats) + fine))


class ClipPredictor(nn.Module):
    num_memories = 7

    def __init__(self, dim=256, mem_dim=64, image_size=1024):
        super().__init__()
        self.image_size = image_size
        self.encoder = FrameEncoder(dim)
        self.attend = MemoryAttention(dim, mem_dim)
        self.decoder = MaskDecoder(dim)
        self.to_memory = nn.Conv2d(dim + 1, mem_dim, 1)

    def init_state(self, frames, prompts):
        return {"frames": frames, "prompts": prompts, "outputs": OrderedDict()}

    def _memory_tokens(self, state, index):
        recent = [state["outputs"][i]["memory"] for i in range(max(0, index - self.num_memories), index)]
        return torch.cat([m.flatten(2).transpose(1, 2) for m in recent], dim=1)

    def track_step(self, state, index, device):
        image = torch.from_numpy(state["frames"][index]).to(device).float().div_(255).permute(2, 0, 1)
        count = len(state["prompts"])
        coarse, fine = self.encoder(image[None])
        coarse, fine = coarse.expand(count, -1, -1, -1), fine.expand(count, -1, -1, -1)
        if index > 0:
            coarse = self.attend(coarse, self._memory_tokens(state, index))
        low_res = self.decoder(coarse, fine)
        high_res = F.interpolate(low_res, size=(self.image_size,) * 2, mode="bilinear", align_corners=False)
        small = F.interpolate(low_res, size=coarse.shape[-2:], mode="area")
        memory = self.to_memory(torch.cat([coarse, small], dim=1))
        out = {"memory": memory, "low_res": low_res, "high_res": high_res}
        state["outputs"][index] = out
        return high_res

    @torch.inference_mode()
    def propagate(self, state, device):
        for index in range(len(state["frames"])):
            masks = self.track_step(state, index, device)
            yield index, (masks > 0).squeeze(1)


class ClipFrames:
    def __init__(self, length, size):
        rng = np.random.default_rng(0)
        self.length = length
        self.background = rng.integers(0, 255, (size, size, 3), dtype=np.uint8)

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.roll(self.background, index, axis=1)


def write_areas(path, areas):
    with open(path, "w") as handle:
        for index, row in areas:
            handle.write(f"{index}," + ",".join(str(int(a)) for a in row) + "\n")


def main(device):
    model = ClipPredictor().to(device).eval()
    frames = ClipFrames(length=360, size=1024)
    prompts = {"doe": (412, 530), "fawn": (455, 610), "fox": (800, 700), "jay": (120, 90)}
    state = model.init_state(frames, prompts)
    areas = []
    for index, masks in model.propagate(state, device):
        areas.append((index, masks.sum(dim=(1, 2)).cpu().numpy()))
        if index % 60 == 0:
            print(f"frame {index}/{len(frames)}", flush=True)
    write_areas("/tmp/clip_areas.csv", areas)
    print("done", len(areas))


if __name__ == "__main__":
    main(torch.device(sys.argv[1]))
