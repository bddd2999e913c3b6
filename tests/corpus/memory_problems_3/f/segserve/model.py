from torch import nn


class SegNet(nn.Module):
    """Backbone with a prototype branch and a mask coefficient branch."""

    def __init__(self, n_protos=32, max_det=300):
        super().__init__()
        self.max_det = max_det
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 4, stride=4), nn.SiLU(),
            nn.Conv2d(32, 64, 3, padding=1), nn.SiLU())
        self.proto = nn.Conv2d(64, n_protos, 1)
        self.coef = nn.Conv2d(64, n_protos, 4, stride=4)
        self.box = nn.Conv2d(64, 4, 4, stride=4)

    def forward(self, x):
        f = self.backbone(x)
        boxes = self.box(f).flatten(2).transpose(1, 2)
        coef = self.coef(f).flatten(2).transpose(1, 2)
        return self.proto(f), coef[:, :self.max_det], boxes[:, :self.max_det]
