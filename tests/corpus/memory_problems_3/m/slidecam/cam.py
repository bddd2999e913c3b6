import torch
import torch.nn.functional as F


class LayerCam:
    """Class activation maps of several layers, averaged at tile resolution."""

    def __init__(self, model, layers):
        self.model = model
        self.activations, self.gradients = [], []
        self.handles = []
        for layer in layers:
            self.handles.append(layer.register_forward_hook(self._keep_activation))

    def _keep_activation(self, module, inputs, output):
        self.activations.append(output.detach())
        if output.requires_grad:
            output.register_hook(self._keep_gradient)

    def _keep_gradient(self, grad):
        self.gradients.insert(0, grad)

    def __call__(self, tiles, target):
        self.activations, self.gradients = [], []
        self.model.zero_grad()
        logits = self.model(tiles)
        logits[:, target].sum().backward()
        maps = [self._map(a, g, tiles.shape[-2:]) for a, g in zip(self.activations, self.gradients)]
        return torch.stack(maps).mean(0), logits.detach()

    @staticmethod
    def _map(act, grad, size):
        cam = (torch.relu(grad) * act).sum(1, keepdim=True)
        return F.interpolate(torch.relu(cam), size=size, mode="bilinear", align_corners=False)

    def release(self):
        for handle in self.handles:
            handle.remove()
        self.activations, self.gradients = [], []

    def __del__(self):
        self.release()
