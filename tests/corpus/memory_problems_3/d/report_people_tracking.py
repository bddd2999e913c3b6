"""Tracks people through a clip by pose, appearance (texture in UV space) and place; identities by greedy matching."""
import argparse
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class TrackerOptions:
    max_ids: int = 10
    window: int = 20
    texture: int = 64
    threshold: float = 1e6


class HumanEncoder(nn.Module):
    """Pose embedding, place and UV texture of each cropped person."""

    def __init__(self, texture):
        super().__init__()
        self.texture = texture
        self.backbone = nn.Sequential(nn.Conv2d(3, 64, 7, stride=4, padding=3), nn.ReLU(), nn.Conv2d(64, 128, 3, stride=4, padding=1))
        self.pose = nn.Linear(128, 512)
        self.place = nn.Linear(128, 99)
        self.uv = nn.ConvTranspose2d(128, 4, 8, stride=8)

    def forward(self, crops):
        features = self.backbone(crops)
        pooled = features.mean(dim=(2, 3))
        uv = nn.functional.interpolate(self.uv(features), size=(self.texture, self.texture))
        return self.pose(pooled), self.place(pooled), uv


class AppearanceAutoencoder(nn.Module):
    def __init__(self, texture):
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(4, 16, 8, stride=8), nn.ReLU(), nn.Flatten(), nn.Linear(16 * (texture // 8) ** 2, 512))

    def forward(self, uv):
        return self.encode(uv)


class Tracker:
    def __init__(self, frames, options, device):
        self.options = options
        self.human = HumanEncoder(options.texture).to(device).eval()
        self.appearance = AppearanceAutoencoder(options.texture).to(device).eval()
        self.pose_emb = torch.zeros(frames, options.max_ids, 512, device=device)
        self.loca_emb = torch.ones(frames, options.max_ids, 99, device=device)
        self.uv_vector = torch.zeros(frames, options.max_ids, 4, options.texture, options.texture, device=device)
        self.seen = torch.full((options.max_ids,), -1, dtype=torch.int64)
        self.identities = []

    def descriptors(self, frame):
        """Mean of each track over the last frames of the window."""
        first = max(0, frame - self.options.window)
        pose = self.pose_emb[first:frame].mean(dim=0)
        place = self.loca_emb[first:frame].mean(dim=0)
        uv = self.uv_vector[first:frame]
        look = self.appearance(uv.amax(dim=0))
        return pose, place, look

    def match(self, frame, pose, place, uv):
        known = (self.seen >= 0).nonzero().flatten().tolist()
        free = [index for index in range(self.options.max_ids) if index not in known]
        assigned = []
        if known and frame:
            track_pose, track_place, track_look = self.descriptors(frame)
            cost = torch.cdist(pose, track_pose) + torch.cdist(place, track_place)
            cost = (cost + torch.cdist(self.appearance(uv), track_look)).cpu()
        for row in range(len(pose)):
            options = [index for index in known if index not in assigned]
            best = min(options, key=lambda index: cost[row, index].item(), default=None) if frame else None
            if best is None or cost[row, best] > self.options.threshold:
                best = free.pop(0) if free else None
            assigned.append(best)
        return assigned

    @torch.inference_mode()
    def update(self, frame, crops):
        pose, place, uv = self.human(crops)
        assigned = self.match(frame, pose, place, uv)
        for row, identity in enumerate(assigned):
            if identity is None:
                continue
            self.pose_emb[frame, identity] = pose[row]
            self.loca_emb[frame, identity] = place[row]
            self.uv_vector[frame, identity] = uv[row]
            self.seen[identity] = frame
        self.identities.append(assigned)


def clip(frames, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(frames):
        people = int(torch.randint(2, 5, (), generator=generator))
        yield torch.rand(people, 3, 128, 128, generator=generator)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=int, default=1500)
    parser.add_argument("--max-ids", type=int, default=10)
    args = parser.parse_args()
    tracker = Tracker(args.frames, TrackerOptions(max_ids=args.max_ids), "cuda")
    for frame, crops in enumerate(clip(args.frames, seed=9)):
        tracker.update(frame, crops.cuda())
        if frame % 250 == 0:
            print(f"frame {frame}: tracks {int((tracker.seen >= 0).sum())}, {torch.cuda.memory_allocated() / 2**20:.0f} MiB")
    print("peak", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
