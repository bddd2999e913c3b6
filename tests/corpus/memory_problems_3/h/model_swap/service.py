import gc
import logging
import threading

import torch

log = logging.getLogger("service")


class DetectionService:
    """Keeps one detector on the device and answers page requests with it."""

    def __init__(self, factory, device, top_k=100):
        self.factory = factory
        self.device = device
        self.top_k = top_k
        self.lock = threading.Lock()
        self.model = None
        self.version = None
        self.served = 0

    def load(self, version):
        with self.lock:
            self._unload()
            log.info("loading detector %s", version)
            with self.device:
                self.model = self.factory(version).eval()
            self.version = version

    def _unload(self):
        if self.model is None:
            return
        log.info("unloading detector %s", self.version)
        self.model = None
        self.version = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.inference_mode()
    def handle(self, page):
        with self.lock:
            boxes, logits = self.model(page.to(self.device)[None])
            scores, labels = logits.softmax(-1)[..., :-1].max(-1)
            best = scores.topk(min(self.top_k, scores.shape[1]), dim=1).indices
            self.served += 1
            return {
                "version": self.version,
                "boxes": boxes.gather(1, best[..., None].expand(-1, -1, 4)).cpu(),
                "labels": labels.gather(1, best).cpu(),
            }
