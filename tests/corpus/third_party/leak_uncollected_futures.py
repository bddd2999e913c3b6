"""An embedding service that hands the work to a thread pool and answers "accepted" at once.

The futures are kept so that nothing is lost on shutdown; their results are never fetched or dropped.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class EmbeddingService:
    def __init__(self, device, workers=3):
        self.device = device
        self.model = nn.Sequential(nn.Linear(80, 160), nn.ReLU(), nn.Linear(160, 320)).to(device).eval()
        self.pool = ThreadPoolExecutor(max_workers=workers)
        self.jobs = []

    def _embed(self, seed):
        text = torch.randn(12, 80, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            return self.model(text.to(self.device))  # LEAK

    def accept(self, seed):
        job = self.pool.submit(self._embed, seed)
        self.jobs.append(job)  # LEAK
        return job

    def close(self):
        self.pool.shutdown(wait=True)


def main():
    torch.manual_seed(2)
    torch.set_num_threads(1)
    service = EmbeddingService(sys.argv[1])
    for request in range(700):
        job = service.accept(request)
        if request % 10 == 0:
            job.result()  # a client that insists on an answer
    service.close()
    print("jobs done:", sum(job.done() for job in service.jobs))


if __name__ == "__main__":
    main()
