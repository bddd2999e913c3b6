"""Metrics that attach themselves to an engine and read `engine.state.output`."""
import torch

from .engine import Events


class ConfusionMatrix:
    def __init__(self, num_classes, device):
        self.num_classes = num_classes
        self.matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64, device=device)

    def update(self, output):
        y_pred, y = output
        for prediction, target in zip(y_pred, y):
            cells = target.flatten() * self.num_classes + prediction.argmax(dim=0).flatten()
            cells = cells.clamp_(0, self.num_classes**2 - 1)
            ones = torch.ones_like(cells)
            self.matrix.view(-1).scatter_add_(0, cells, ones)

    def compute(self):
        matrix = self.matrix.double()
        union = matrix.sum(0) + matrix.sum(1) - matrix.diag()
        return (matrix.diag() / union.clamp(min=1)).mean().item()

    def attach(self, engine, name):
        @engine.on(Events.ITERATION_COMPLETED)
        def _update(engine):
            self.update(engine.state.output)

        @engine.on(Events.COMPLETED)
        def _compute(engine):
            engine.state.metrics[name] = self.compute()
