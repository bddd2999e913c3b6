import torch


class Pipeline:
    def __init__(self, model, device):
        self.model = model.eval()
        self.device = device

    def window(self, volume):
        scaled = ((volume.float() + 1000.0) / 4000.0).clamp(0, 1)
        return torch.stack([scaled.roll(1, 0), scaled, scaled.roll(-1, 0)], 1)

    def tooth_volumes(self, labels, study):
        dz, dy, dx = study.spacing()
        counts = torch.stack([(labels == c).sum() for c in range(1, 33)])
        return (counts * (dz * dy * dx)).cpu()

    @torch.inference_mode()
    def __call__(self, study):
        volume = study.pixels().to(self.device)
        image = self.window(volume)
        logits = self.model(image)
        probabilities = logits.softmax(1)
        confidence, labels = probabilities.max(1)
        volumes = self.tooth_volumes(labels, study)
        return {
            "study": study.uid,
            "teeth": volumes.tolist(),
            "confidence": float(confidence.mean()),
        }
