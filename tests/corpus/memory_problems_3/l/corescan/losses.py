import torch
from torch import nn
import torch.nn.functional as F


class OverlapLoss(nn.Module):
    """Soft Dice averaged over phases, with absent phases ignored by the smoothing term."""

    def __init__(self, n_phases, smooth=1.0):
        super().__init__()
        self.n_phases = n_phases
        self.smooth = smooth

    def forward(self, probs, labels):
        target = F.one_hot(labels, self.n_phases).movedim(-1, 1)
        space = tuple(range(2, probs.ndim))
        overlap = (probs * target).sum(space)
        volume = probs.sum(space) + target.sum(space)
        dice = (2 * overlap + self.smooth) / (volume + self.smooth)
        return 1 - dice.mean()


class CompoundLoss(nn.Module):
    def __init__(self, n_phases, overlap_weight=0.5):
        super().__init__()
        self.overlap = OverlapLoss(n_phases)
        self.overlap_weight = overlap_weight

    def forward(self, logits, labels):
        log_probs = F.log_softmax(logits, dim=1)
        likelihood = F.nll_loss(log_probs, labels)
        overlap = self.overlap(log_probs.exp(), labels)
        return (1 - self.overlap_weight) * likelihood + self.overlap_weight * overlap
