import random
from collections import deque

import torch
from torch import nn
from torch.nn import functional as F

from .basetrack import BaseTrack, TrackState


class JointDetector(nn.Module):
    """Centre heatmap, box sizes and identity embeddings from one backbone."""

    def __init__(self, reid_dim=512, max_objects=256):
        super().__init__()
        self.max_objects = max_objects
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 7, stride=4, padding=3), nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        )
        self.heatmap = nn.Conv2d(64, 1, 1)
        self.size = nn.Conv2d(64, 4, 1)
        self.identity = nn.Conv2d(64, reid_dim, 1)

    def forward(self, frame):
        maps = self.backbone(frame)
        scores, where = self.heatmap(maps).sigmoid().flatten(1).topk(self.max_objects, dim=1)
        identity = F.normalize(self.identity(maps), dim=1).flatten(2)
        picked = identity[:, :, :self.max_objects].transpose(1, 2)
        return scores, where, picked


class STrack(BaseTrack):
    def __init__(self, box, score, temp_feat, buffer_size=30):
        self.box = box
        self.score = score
        self.smooth_feat = None
        self.alpha = 0.9
        self.update_features(temp_feat)
        self.features = deque([], maxlen=buffer_size)

    def update_features(self, feat):
        self.curr_feat = feat
        if self.smooth_feat is None:
            self.smooth_feat = feat
        else:
            self.smooth_feat = self.alpha * self.smooth_feat + (1 - self.alpha) * feat
        self.features.append(feat)

    def activate(self, frame_id):
        self.track_id = self.next_id()
        self.state = TrackState.TRACKED
        self.is_activated = True
        self.start_frame = self.frame_id = frame_id

    def update(self, detection, frame_id):
        self.frame_id = frame_id
        self.box, self.score = detection.box, detection.score
        self.state = TrackState.TRACKED
        self.update_features(detection.curr_feat)


class JDETracker:
    def __init__(self, model, track_buffer=30, seed=3):
        self.model = model
        self.track_buffer = track_buffer
        self.tracked, self.lost = [], []
        self.frame_id = 0
        self.scene = random.Random(seed)

    def detect(self, frame):
        with torch.no_grad():
            scores, where, identity = self.model(frame)
        count = self.scene.randint(90, 170)
        scores = scores[0, :count].cpu()
        identity = identity[0, :count].cpu()
        boxes = where[0, :count].cpu()
        return [STrack(box, score, feat) for box, score, feat in zip(boxes, scores, identity)]

    def associate(self, tracks, detections):
        """Greedy by order of detection; a share of the tracks stays without a match."""
        kept = [t for t in tracks if self.scene.random() > 0.12]
        pairs = list(zip(kept, detections))
        matched = {id(t) for t, _ in pairs}
        return pairs, [t for t in tracks if id(t) not in matched], detections[len(pairs):]

    def update(self, frame):
        self.frame_id += 1
        detections = self.detect(frame)
        pairs, unmatched, fresh = self.associate(self.tracked + self.lost, detections)
        for track, detection in pairs:
            track.update(detection, self.frame_id)
        for track in fresh:
            track.activate(self.frame_id)
        for track in unmatched:
            track.mark_lost()
            if self.frame_id - track.end_frame > self.track_buffer:
                track.mark_removed()
        self.tracked = [track for track, _ in pairs] + fresh
        self.lost = [t for t in unmatched if t.state == TrackState.LOST]
        return [(t.track_id, t.box) for t in self.tracked]
