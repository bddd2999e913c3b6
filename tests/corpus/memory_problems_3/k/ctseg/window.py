import itertools

import torch


def starts(length, patch, stride):
    if length <= patch:
        return [0]
    pos = list(range(0, length - patch, stride))
    return pos + [length - patch]


def importance(patch, device):
    axes = [torch.exp(-0.5 * ((torch.arange(p) - (p - 1) / 2) / (p / 8)) ** 2) for p in patch]
    w = axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]
    return w.clamp_min(1e-3).half().to(device)


@torch.inference_mode()
def sliding_logits(net, volume, organs, patch=(64, 64, 64), overlap=0.5):
    """Gaussian-weighted sliding window, accumulated in half precision."""
    shape = volume.shape
    acc = torch.zeros(organs, *shape, dtype=torch.float16, device=volume.device)
    norm = torch.zeros(shape, dtype=torch.float16, device=volume.device)
    w = importance(patch, volume.device)
    grids = [starts(n, p, int(p * (1 - overlap))) for n, p in zip(shape, patch)]
    for corner in itertools.product(*grids):
        sl = tuple(slice(c, c + p) for c, p in zip(corner, patch))
        out = net(volume[sl][None, None].half())[0]
        acc[(slice(None), *sl)].addcmul_(out, w)
        norm[sl] += w
    return acc.div_(norm)
