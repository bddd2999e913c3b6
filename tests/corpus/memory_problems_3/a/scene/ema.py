import copy

import torch


class ModelEma:
    def __init__(self, model, decay=0.999):
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for average, value in zip(self.module.state_dict().values(), model.state_dict().values()):
            if average.is_floating_point():
                average.lerp_(value, 1 - self.decay)
            else:
                average.copy_(value)

    def state_dict(self):
        return self.module.state_dict()

    def load_state_dict(self, state):
        self.module.load_state_dict(state)
