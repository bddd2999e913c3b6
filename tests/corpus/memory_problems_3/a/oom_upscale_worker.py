"""Worker which takes images from a queue and doubles their resolution."""
import queue
import threading

import torch

from upscaler.network import Upscaler
from upscaler.settings import Settings, start

ORDERS = [("thumbnail", 240, 320, 60), ("photo", 480, 640, 40), ("scan", 900, 1200, 20)]


class Worker:
    def __init__(self, settings):
        self.device = start(settings)
        self.network = Upscaler(settings.features, settings.blocks, settings.scale).to(self.device).half().eval()
        self.inbox = queue.Queue(maxsize=4)
        self.done = {}

    @torch.inference_mode()
    def upscale(self, image):
        batch = image.to(self.device, torch.float16).unsqueeze(0) / 255.0
        result = self.network(batch).clamp(0, 1).mul(255).byte()
        return result.squeeze(0).cpu()

    def feed(self, orders):
        for kind, height, width, count in orders:
            for number in range(count):
                self.inbox.put((f"{kind}-{number}", torch.zeros(3, height, width, dtype=torch.uint8)))
        self.inbox.put(None)

    def run(self):
        while (order := self.inbox.get()) is not None:
            name, image = order
            result = self.upscale(image)
            self.done[name] = tuple(result.shape)
            if name.endswith("-0"):
                free, total = torch.cuda.mem_get_info()
                print(f"{name}: {tuple(image.shape)} -> {self.done[name]}, device has {free >> 20} of {total >> 20} MiB free")


def main():
    worker = Worker(Settings())
    feeder = threading.Thread(target=worker.feed, args=(ORDERS,), daemon=True)
    feeder.start()
    worker.run()
    feeder.join()
    print(f"{len(worker.done)} images")


if __name__ == "__main__":
    main()
