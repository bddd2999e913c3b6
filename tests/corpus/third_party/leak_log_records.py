"""A sensor service that logs unusual readings and offers the recent log on a status page.

The handler for the status page keeps whole log records, whose arguments are tensors, and forgets none.
"""

import logging
import sys

import torch
from torch import nn

logger = logging.getLogger("sensors")


class StatusPageHandler(logging.Handler):
    def __init__(self):
        super().__init__(level=logging.INFO)
        self.records = []

    def emit(self, record):
        self.records.append(record)  # LEAK

    def page(self, lines=3):
        return [record.msg for record in self.records[-lines:]]


class AnomalyDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(256, 16)
        self.decode = nn.Linear(16, 256)

    def forward(self, readings):
        return (self.decode(torch.tanh(self.encode(readings))) - readings).square()  # LEAK


@torch.no_grad()
def check(detector, readings, number):
    deviation = detector(readings)
    if number % 6 == 0:  # the plant's schedule asks for a closer look at these
        logger.info("unusual readings: %s", deviation)  # LEAK


def main():
    device = sys.argv[1]
    torch.manual_seed(33)
    torch.set_num_threads(1)
    page = StatusPageHandler()
    logger.addHandler(page)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    detector = AnomalyDetector().to(device)
    for number in range(900):
        check(detector, torch.randn(8, 256, device=device), number)
    print(page.page())


if __name__ == "__main__":
    main()
