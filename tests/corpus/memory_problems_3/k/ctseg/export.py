import torch
import torch.nn.functional as F


@torch.inference_mode()
def to_native_labels(logits, native_shape):
    """Bring the prediction back to the grid of the scanner."""
    full = F.interpolate(logits[None], size=native_shape, mode="trilinear", align_corners=False)[0]
    return full.argmax(0).to(torch.uint8)


def organ_volumes(labels, spacing, organs):
    voxel_ml = spacing[0] * spacing[1] * spacing[2] / 1000.0
    counts = torch.bincount(labels.cpu().flatten().long(), minlength=organs)[:organs]
    return [float(c) * voxel_ml for c in counts]
