from .checkpoints import CheckpointStore
from .ema import ModelEma
from .network import SceneNet, scene_losses

__all__ = ["CheckpointStore", "ModelEma", "SceneNet", "scene_losses"]
