"""Count pedestrians in the recording of a station hall."""
import os
import time

import torch

from report_reid_tracks_lib.multitracker import JDETracker, JointDetector


def resident_mib():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 2**20


class Recording:
    def __init__(self, frames, height=288, width=512):
        self.frames = frames
        self.still = torch.zeros(1, 3, height, width)

    def __iter__(self):
        for _ in range(self.frames):
            yield self.still.cuda()


class Counter:
    def __init__(self):
        self.seen = set()
        self.busiest = 0

    def add(self, targets):
        self.seen.update(track_id for track_id, _ in targets)
        self.busiest = max(self.busiest, len(targets))


def main():
    torch.manual_seed(0)
    tracker = JDETracker(JointDetector().cuda().eval())
    counter = Counter()
    began = time.perf_counter()
    for number, frame in enumerate(Recording(1600)):
        counter.add(tracker.update(frame))
        if number % 400 == 0:
            print(f"frame {number}: {len(counter.seen)} people so far, busiest {counter.busiest}, "
                  f"resident {resident_mib()} MiB", flush=True)
    print(f"{number + 1} frames in {time.perf_counter() - began:.1f} s, resident {resident_mib()} MiB")


if __name__ == "__main__":
    main()
