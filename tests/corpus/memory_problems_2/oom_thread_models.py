"""Serves an image embedding model; each request is handled in its own thread, as a development web server does.

Report: https://github.com/microsoft/onnxruntime/issues/11156 and https://github.com/pytorch/pytorch/issues/42111
        (threaded web server, the memory of the GPU grows with the threads: each thread makes its own session)
Cause:  a model is loaded per thread and kept in a registry by the thread's name; threads end, their models stay.
Line:   self.sessions[name] = session
Cure:   load one model and share it between the threads (guarded by a lock if needed).
"""
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class EmbeddingModel(nn.Module):
    def __init__(self, width=96, outputs=512):
        super().__init__()
        channels = [3, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.Sequential(*[
            nn.Sequential(nn.Conv2d(a, b, 3, stride=2, padding=1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in zip(channels[:-1], channels[1:])
        ])
        self.mix = nn.Sequential(nn.Linear(8 * width, 16 * width), nn.GELU(), nn.Linear(16 * width, 8 * width))
        self.project = nn.Linear(8 * width * 16, outputs)

    def forward(self, images):
        features = self.stages(images).permute(0, 2, 3, 1)
        features = features + self.mix(features)
        return nn.functional.normalize(self.project(features.flatten(1)), dim=-1)


class Session:
    """A model with its own preprocessing buffers."""

    def __init__(self, weights, device, max_batch=32, size=64):
        with torch.device(device):
            self.model = EmbeddingModel().eval()
        self.model.load_state_dict(weights)
        self.device = device
        self.staging = torch.empty(max_batch, 3, size, size, device=device)
        self.mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device=device).view(3, 1, 1)

    @torch.inference_mode()
    def run(self, images):
        batch = self.staging[: len(images)]
        batch.copy_(images)
        return self.model((batch - self.mean) / self.std).cpu()


class SessionRegistry:
    """One session per thread, because it was not clear that modules may be shared."""

    def __init__(self, weights, device):
        self.weights = weights
        self.device = device
        self.sessions = {}
        self.lock = threading.Lock()

    def current(self):
        name = threading.current_thread().name
        with self.lock:
            session = self.sessions.get(name)
            if session is None:
                session = Session(self.weights, self.device)
                self.sessions[name] = session  # CAUSE
        return session


class Server:
    def __init__(self, registry):
        self.registry = registry
        self.served = 0

    def handle(self, request):
        embedding = self.registry.current().run(request["images"])
        return {"id": request["id"], "embedding": embedding.mean(dim=0).tolist()}

    def dispatch(self, request):
        with ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"request-{request['id']}") as thread:
            response = thread.submit(self.handle, request).result()
        self.served += 1
        return response


def requests(count, batch_size=8):
    for number in range(count):
        yield {"id": number, "images": torch.rand(batch_size, 3, 64, 64)}


def main():
    torch.manual_seed(0)
    weights = EmbeddingModel().state_dict()
    server = Server(SessionRegistry(weights, torch.device("cuda")))
    for request in requests(1000):
        server.dispatch(request)
        if server.served % 25 == 0:
            print(f"{server.served} requests, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    main()
