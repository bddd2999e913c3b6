import torch


class AlignmentError(ValueError):
    pass


def extended_states(pieces, blank=0):
    states = torch.full((2 * len(pieces) + 1,), blank, dtype=torch.long)
    states[1::2] = pieces
    return states


def align(emissions, pieces, stride=8):
    """Scores of the word pieces against the emissions, on a coarse time grid."""
    n_frames = emissions.shape[0]
    states = extended_states(pieces).to(emissions.device)
    trellis = emissions[:, states]
    if len(pieces) > n_frames:
        raise AlignmentError(f"{len(pieces)} pieces do not fit in {n_frames} frames")
    path = trellis[::stride].cumsum(dim=0)
    return path[-1].max(), path.argmax(dim=1)
