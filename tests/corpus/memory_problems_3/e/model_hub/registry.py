"""Loads translation models when they are asked for; at most a few are on the GPU, the others wait in host memory."""
import logging
from collections import OrderedDict

import torch

from model_hub.network import Translator

logger = logging.getLogger(__name__)


class ModelRegistry:
    def __init__(self, capacity, device):
        self.capacity = capacity
        self.device = device
        self.resident = OrderedDict()
        self.parked = {}

    def _build(self, pair):
        torch.manual_seed(abs(hash(pair)) % 1000)
        return Translator().eval().requires_grad_(False)

    def get(self, pair):
        if pair in self.resident:
            self.resident.move_to_end(pair)
            return self.resident[pair]
        while len(self.resident) >= self.capacity:
            name, model = self.resident.popitem(last=False)
            self.parked[name] = model.to("cpu")
            logger.info("parked %s", name)
        model = self.parked.pop(pair, None) or self._build(pair)
        self.resident[pair] = model.to(self.device)
        logger.info("loaded %s, %d resident", pair, len(self.resident))
        return self.resident[pair]
