"""Player tracking for a match broadcast: appearance embeddings plus a short template gallery."""
import sys

import torch
import torch.nn.functional as F

from mot import AppearanceNet, FrameSource, TrackTable

CROP = (256, 128)


def prepare(frame, device):
    frame = frame.to(device, non_blocking=True)
    image = frame.permute(2, 0, 1).float().div_(255.0)
    return image


def cut(image, row):
    return image[:, row.y:row.y + row.h, row.x:row.x + row.w]


def resize(crops):
    return torch.stack([F.interpolate(c[None], size=CROP, mode="bilinear", align_corners=False)[0] for c in crops])


class Tracker:
    def __init__(self, net, device):
        self.net = net.to(device).eval()
        self.device = device
        self.table = TrackTable(memory=8)

    @torch.no_grad()
    def step(self, frame_no, frame, boxes):
        image = prepare(frame, self.device)
        rows = list(boxes.itertuples(index=False))
        crops = [cut(image, r) for r in rows]
        embeddings = self.net(resize(crops))
        for row, crop, emb in zip(rows, crops, embeddings):
            self.table.get(row.player).update(frame_no, crop, emb, row.score)
        self.table.expire(frame_no)
        return len(rows)

    @torch.no_grad()
    def refine(self):
        """Re-embed the stored templates of every track and replace the running average."""
        for track in self.table.tracks.values():
            if track.templates:
                track.embedding = F.normalize(self.net(resize(track.templates)).mean(0), dim=0)

    @torch.no_grad()
    def confusion(self):
        bank = self.table.bank()
        return (bank @ bank.T).cpu()


def main(device):
    torch.manual_seed(8)
    source = FrameSource(frames=110, players=22, seed=8)
    tracker = Tracker(AppearanceNet(), device)
    detections = 0
    for frame_no, frame, boxes in source:
        detections += tracker.step(frame_no, frame, boxes)
        if frame_no % 10 == 0:
            print(f"frame {frame_no:4d} detections {detections} templates {tracker.table.template_count()}")
        if frame_no and frame_no % 50 == 0:
            tracker.refine()
    matrix = tracker.confusion()
    print(f"{len(matrix)} tracks, {tracker.table.template_count()} templates")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cuda")
