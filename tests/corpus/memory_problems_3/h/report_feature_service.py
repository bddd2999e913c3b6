"""Feature service of a product catalogue.

Answers requests with multi-scale features pooled per region plus a global
embedding. Images arrive decoded but otherwise as the shops uploaded them.

    python report_feature_service.py cuda
"""
import sys

import torch
import torch.nn.functional as F

from report_feature_service_pkg import IntermediateLayerGetter, build_backbone

REGIONS = 7


class FeatureService:
    def __init__(self, device):
        self.device = device
        self.dtype = torch.bfloat16
        self.backbone = build_backbone(device, self.dtype)
        self.getter = IntermediateLayerGetter(
            self.backbone,
            {"layer1": "p2", "layer2": "p3", "layer3": "p4", "layer4": "p5"},
        )
        self.served = 0
        self.rejected = 0

    @torch.inference_mode()
    def handle(self, request):
        images = request["images"].to(self.device, self.dtype).div_(255)
        try:
            features, embedding = self.getter(images)
        except RuntimeError as error:
            self.rejected += 1
            return {"id": request["id"], "status": 422, "detail": str(error).splitlines()[0]}
        pooled = {
            name: F.adaptive_avg_pool2d(feature, REGIONS).flatten(1).cpu()
            for name, feature in features.items()
        }
        self.served += 1
        return {
            "id": request["id"],
            "status": 200,
            "embedding": F.normalize(embedding.float(), dim=-1).cpu(),
            "regions": pooled,
        }


def uploads(count, seed=5):
    """Requests as they come in: mostly RGB, some shops send RGBA or grey scans."""
    generator = torch.Generator().manual_seed(seed)
    for number in range(count):
        channels = 3
        if number % 4 == 1:
            channels = 4 if number % 8 == 1 else 1
        side = (192, 224, 256)[number % 3]
        images = torch.randint(0, 256, (8, channels, side, side), generator=generator, dtype=torch.uint8)
        yield {"id": f"req-{number:04d}", "images": images}


def main():
    device = torch.device(sys.argv[1] if len(sys.argv) > 1 else "cuda")
    torch.manual_seed(0)
    service = FeatureService(device)
    for number, request in enumerate(uploads(64)):
        reply = service.handle(request)
        if number % 8 == 0:
            print(reply["id"], reply["status"])
    print(f"served {service.served}, rejected {service.rejected}")


if __name__ == "__main__":
    main()
