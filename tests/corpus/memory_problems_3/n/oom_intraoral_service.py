import collections
import sys
import time

import torch

from intraoral.network import ToothSegmenter
from intraoral.pipeline import Pipeline
from intraoral.studies import StudyError, incoming


class Worker:
    """Takes studies off the queue, answers each of them, and reports at the end of the shift."""

    def __init__(self, pipeline, report_every=20):
        self.pipeline = pipeline
        self.report_every = report_every
        self.queue = collections.deque()
        self.answers = {}
        self.rejected = {}
        self.latency = []

    def submit(self, study):
        self.queue.append(study)

    def handle(self, study):
        started = time.perf_counter()
        try:
            self.answers[study.uid] = self.pipeline(study)
        except StudyError as error:
            self.rejected[study.uid] = error
        finally:
            self.latency.append(time.perf_counter() - started)

    def drain(self):
        done = 0
        while self.queue:
            self.handle(self.queue.popleft())
            done += 1
            if done % self.report_every == 0:
                recent = self.latency[-self.report_every:]
                print(f"{done:4d} studies, {len(self.rejected)} rejected, "
                      f"{1000 * sum(recent) / len(recent):.0f} ms each", flush=True)

    def summary(self):
        reasons = collections.Counter(str(e).split(": ", 1)[1] for e in self.rejected.values())
        lines = [f"{len(self.answers)} answered, {len(self.rejected)} rejected"]
        lines += [f"  {count:3d} x {reason}" for reason, count in reasons.most_common()]
        return "\n".join(lines)


def warm_up(pipeline, device):
    with torch.inference_mode():
        pipeline.model(torch.zeros(8, 3, 64, 64, device=device))
    torch.cuda.synchronize()


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(2)
    model = ToothSegmenter().to(device)
    pipeline = Pipeline(model, device)
    warm_up(pipeline, device)
    worker = Worker(pipeline)
    for study in incoming(160, seed=4):
        worker.submit(study)
    print(f"{len(worker.queue)} studies queued", flush=True)
    worker.drain()
    print(worker.summary())


if __name__ == "__main__":
    main()
