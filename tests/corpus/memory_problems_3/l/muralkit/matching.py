import torch
import torch.nn.functional as F


class FeatureMatcher:
    """Compares encoder features of a picture with those of a reference, at several levels."""

    def __init__(self, encoder, levels, weights=None):
        self.encoder = encoder
        self.levels = levels
        self.weights = weights or {level: 1.0 / (1 + i) for i, level in enumerate(levels)}
        self.features = {}
        self.reference = {}
        for level in levels:
            encoder.get_submodule(level).register_forward_hook(self._recorder(level))

    def _recorder(self, level):
        def record(module, inputs, output):
            self.features[level] = output
        return record

    @torch.no_grad()
    def set_reference(self, picture):
        self.encoder(picture)
        self.reference = dict(self.features)
        self.features.clear()

    def distance(self, picture):
        self.encoder(picture)
        total = picture.new_zeros(())
        for level in self.levels:
            total = total + self.weights[level] * F.mse_loss(self.features[level], self.reference[level])
        self.features.clear()
        return total
