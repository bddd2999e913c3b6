"""Propagate the mask of one annotated object through long clips of a traffic camera."""
import sys
import time

import torch

from report_vos_predictor_lib import MaskMemoryNet, VideoPredictor


class Clip:
    """Decoded lazily: frame by frame, as the predictor asks for them."""

    def __init__(self, name, frames, size=512):
        self.name = name
        self.frames = frames
        self.size = size

    def __len__(self):
        return self.frames

    def __getitem__(self, index):
        return torch.zeros(3, self.size, self.size)


class RunLengthWriter:
    def __init__(self):
        self.rows = []

    def write(self, clip, frame_idx, mask):
        area = int(mask.cpu().sum())
        self.rows.append((clip.name, frame_idx, area))


def segment(predictor, clip, box, writer):
    state = predictor.init_state(clip)
    predictor.add_new_box(state, 0, box)
    for frame_idx, mask in predictor.propagate_in_video(state):
        writer.write(clip, frame_idx, mask)
        if frame_idx % 60 == 0:
            print(f"{clip.name} {frame_idx:4d} {torch.cuda.memory_allocated() / 2**20:.0f} MiB", flush=True)


def main(lengths):
    predictor = VideoPredictor(MaskMemoryNet())
    writer = RunLengthWriter()
    began = time.perf_counter()
    for number, length in enumerate(lengths):
        segment(predictor, Clip(f"cam{number}", length), (80, 96, 260, 310), writer)
    print(len(writer.rows), "masks in", f"{time.perf_counter() - began:.1f} s")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main([int(a) for a in sys.argv[1:]] or [90, 300, 150])
