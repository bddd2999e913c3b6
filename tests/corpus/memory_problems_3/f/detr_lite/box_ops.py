"""Utilities for bounding box manipulation and GIoU."""
import torch


def box_cxcywh_to_xyxy(x):
    x_c, y_c, w, h = x.unbind(-1)
    b = [x_c - 0.5 * w, y_c - 0.5 * h, x_c + 0.5 * w, y_c + 0.5 * h]
    return torch.stack(b, dim=-1)


def box_area(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_iou(boxes1, boxes2):
    area1 = box_area(boxes1)
    area2 = box_area(boxes2)

    lt = torch.max(boxes1[:, None, :2], boxes2[:, :2])
    rb = torch.min(boxes1[:, None, 2:], boxes2[:, 2:])

    wh = (rb - lt).clamp(min=0)
    inter = wh[:, :, 0] * wh[:, :, 1]

    union = area1[:, None] + area2 - inter
    iou = inter / union
    return iou, union


def generalized_box_iou(boxes1, boxes2):
    """Boxes in [x0, y0, x1, y1]. Returns a [len(boxes1), len(boxes2)] matrix."""
    iou, union = box_iou(boxes1, boxes2)

    outer_lt = torch.min(boxes1[:, None, :2], boxes2[:, :2])
    outer_rb = torch.max(boxes1[:, None, 2:], boxes2[:, 2:])

    outer_wh = (outer_rb - outer_lt).clamp(min=0)
    area = outer_wh[:, :, 0] * outer_wh[:, :, 1]
    return iou - (area - union) / area
