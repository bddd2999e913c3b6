"""Nightly land-cover statistics for all scenes of a tile."""
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

from satpipe.process import LandCover, SceneProcessor
from satpipe.scenes import SceneRejected, list_scenes

CLASSES = ["water", "trees", "grass", "flooded", "crops", "shrub", "built", "bare", "snow"]


class Catalogue:
    def __init__(self):
        self.rows = {}
        self.rejected = {}

    def add(self, scene, counts):
        share = counts / counts.sum().clamp(min=1)
        self.rows[scene.name] = dict(zip(CLASSES, share.tolist()))

    def reject(self, scene, reason):
        self.rejected[scene.name] = str(reason)

    def summary(self):
        return f"{len(self.rows)} scenes processed, {len(self.rejected)} rejected"


class NightlyRun:
    def __init__(self, device):
        self.device = device
        model = LandCover(bands=10).to(device).eval()
        self.processor = SceneProcessor(model, device)
        self.catalogue = Catalogue()
        self.pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gpu")
        self.jobs = []

    def submit(self, scenes):
        for scene in scenes:
            self.jobs.append((scene, self.pool.submit(self.processor, scene)))

    def collect(self):
        for number, (scene, job) in enumerate(self.jobs):
            try:
                self.catalogue.add(scene, job.result())
            except SceneRejected as reason:
                self.catalogue.reject(scene, reason)
            if number % 10 == 9:
                print(f"{number + 1}/{len(self.jobs)}: {self.catalogue.summary()}", flush=True)

    def close(self):
        self.pool.shutdown(cancel_futures=True)


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(8)
    start = time.time()
    run = NightlyRun(device)
    run.submit(list_scenes(80, seed=8))
    try:
        run.collect()
    finally:
        run.close()
    print(f"{run.catalogue.summary()} in {time.time() - start:.1f}s", flush=True)
    for name, reason in list(run.catalogue.rejected.items())[:5]:
        print("  rejected:", reason)


if __name__ == "__main__":
    main()
