"""Prediction worker: reads jobs, segments the picture, answers with mask areas."""
import json
import logging
import random
import time
from collections import Counter

import torch
import torch.nn.functional as F

from segserve import ops
from segserve.model import SegNet

INPUT_SIZE = 512
CAMERAS = [(1080, 1920), (1536, 2048), (2160, 3840), (3000, 4000)]

logger = logging.getLogger("predict-service")


class JobSource:
    """Stands in for the message broker."""

    def __init__(self, n_jobs, seed):
        self.n_jobs = n_jobs
        self.rng = random.Random(seed)

    def __iter__(self):
        for i in range(self.n_jobs):
            yield {
                "id": f"job-{i}",
                "shape": self.rng.choice(CAMERAS),
                "instances": self.rng.randint(15, 90),
                "retina_masks": True,
            }


class Predictor:
    def __init__(self, device="cuda"):
        self.device = torch.device(device)
        self.model = SegNet().to(self.device).eval()
        self.seen = Counter()

    def preprocess(self, job):
        return torch.rand(1, 3, INPUT_SIZE, INPUT_SIZE).to(self.device)

    def postprocess(self, job, protos, coef, boxes):
        keep = job["instances"]
        coef, boxes = coef[0, :keep], boxes[0, :keep].clone()
        shape = job["shape"]
        boxes *= torch.tensor([shape[1], shape[0]] * 2, device=self.device)
        boxes = ops.clip_boxes(boxes, shape)
        if job["retina_masks"]:
            return ops.process_mask_native(protos[0], coef, boxes, shape)
        low = (coef @ protos[0].flatten(1)).view(-1, *protos.shape[2:])
        return F.interpolate(low[None], (INPUT_SIZE, INPUT_SIZE))[0].gt(0.0)

    @torch.inference_mode()
    def __call__(self, job):
        im = self.preprocess(job)
        protos, coef, boxes = self.model(im)
        masks = self.postprocess(job, protos, coef, boxes)
        self.seen[job["shape"]] += 1
        return ops.rle_sizes(masks).cpu().tolist()


def main():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    predictor = Predictor()
    predictor({"id": "warmup", "shape": CAMERAS[0], "instances": 4, "retina_masks": True})
    started = time.perf_counter()
    done = 0
    for job in JobSource(n_jobs=64, seed=21):
        areas = predictor(job)
        reply = json.dumps({"id": job["id"], "areas": areas})
        done += 1
        if done % 16 == 0:
            logger.info("%d jobs, last reply %d bytes", done, len(reply))
    logger.info("%.1f jobs/s, shapes %s", done / (time.perf_counter() - started), dict(predictor.seen))


if __name__ == "__main__":
    main()
