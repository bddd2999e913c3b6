"""Click through rate model for the advert exchange, one day of logs per run."""
import logging
import time

import torch
from torch import nn

from ctr_tables import ClickModel, click_log

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
log = logging.getLogger("ctr")


class RunningRate:
    def __init__(self):
        self.total = 0.0
        self.count = 0

    def update(self, value, n):
        self.total += value * n
        self.count += n

    @property
    def mean(self):
        return self.total / max(1, self.count)


class DayTrainer:
    def __init__(self, lr=1e-3, batch_size=4096, clip=5.0):
        self.device = torch.device("cuda")
        with torch.device(self.device):
            self.model = ClickModel()
        self.criterion = nn.BCEWithLogitsLoss()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=lr)
        self.batch_size = batch_size
        self.clip = clip
        size = sum(p.numel() * p.element_size() for p in self.model.parameters())
        log.info("model of %.0f MiB on %s", size / 2**20, self.device)

    def step(self, rows, clicked):
        logits = self.model(rows)
        loss = self.criterion(logits, clicked)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_value_(self.model.deep.parameters(), self.clip)
        self.optimizer.step()
        return loss

    def train(self, rows):
        rate = RunningRate()
        started = time.perf_counter()
        for number, (batch, clicked) in enumerate(click_log(rows, self.batch_size), 1):
            batch = batch.to(self.device)
            clicked = clicked.to(self.device)
            loss = self.step(batch, clicked)
            rate.update(loss.item(), len(clicked))
            if number % 50 == 0:
                log.info("%d rows, loss %.4f, %.0f rows/s", rate.count, rate.mean,
                         rate.count / (time.perf_counter() - started))
        return rate.mean

    @torch.no_grad()
    def evaluate(self, rows):
        rate = RunningRate()
        for batch, clicked in click_log(rows, self.batch_size, seed=99):
            loss = self.criterion(self.model(batch.to(self.device)), clicked.to(self.device))
            rate.update(loss.item(), len(clicked))
        return rate.mean


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = DayTrainer()
    log.info("train loss %.4f", trainer.train(rows=1_000_000))
    log.info("next day loss %.4f", trainer.evaluate(rows=200_000))
