"""Post-processing of the instance head."""
import torch
import torch.nn.functional as F


def clip_boxes(boxes, shape):
    h, w = shape
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, w)
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, h)
    return boxes


def crop_mask(masks, boxes):
    """Zero everything outside of each box."""
    _, h, w = masks.shape
    x1, y1, x2, y2 = boxes.unsqueeze(-1).unbind(1)
    cols = torch.arange(w, device=masks.device)[None]
    rows = torch.arange(h, device=masks.device)[None]
    masks *= ((cols >= x1) & (cols < x2))[:, None, :]
    masks *= ((rows >= y1) & (rows < y2))[:, :, None]
    return masks


def scale_masks(masks, shape):
    """Resize [1, N, h, w] mask logits to the original image shape."""
    return F.interpolate(masks, shape, mode="bilinear", align_corners=False)


def process_mask_native(protos, masks_in, bboxes, shape):
    c, mh, mw = protos.shape
    masks = (masks_in @ protos.float().view(c, -1)).view(-1, mh, mw)
    masks = scale_masks(masks[None], shape)[0]
    masks = crop_mask(masks, bboxes)
    return masks.gt_(0.0).byte()


def rle_sizes(masks):
    return torch.stack([mask.sum() for mask in masks])
