from dataclasses import dataclass


@dataclass
class Config:
    events: int = 17
    frames: int = 16
    size: int = 224
    tubelet: tuple = (2, 16, 16)
    dim: int = 768
    depth: int = 16
    heads: int = 12
    dropout: float = 0.1
    batch_size: int = 4
    lr: float = 1.5e-4
    weight_decay: float = 0.05
    recompute: bool = True
    segments: int = 1
    steps: int = 12

    @property
    def tokens(self):
        t, h, w = self.tubelet
        return (self.frames // t) * (self.size // h) * (self.size // w)
