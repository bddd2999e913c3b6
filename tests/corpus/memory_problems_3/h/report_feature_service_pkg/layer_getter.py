"""Collect the outputs of chosen sub-modules during one forward pass."""
from functools import reduce

import torch.nn as nn


def _submodule(model, path):
    return reduce(getattr, path.split("."), model)


class IntermediateLayerGetter:
    """Call the model and return {new_name: activation} for the layers asked for.

    return_layers maps the dotted path of a sub-module to the key it gets in
    the result. Activations come back in float32 whatever the model runs in.
    """

    def __init__(self, model: nn.Module, return_layers: dict):
        self.model = model
        self.return_layers = dict(return_layers)

    def __call__(self, *args, **kwargs):
        features = {}
        handles = []
        for path, new_name in self.return_layers.items():
            layer = _submodule(self.model, path)

            def hook(module, inputs, output, new_name=new_name):
                features[new_name] = output.detach().float()

            handles.append(layer.register_forward_hook(hook))

        output = self.model(*args, **kwargs)
        for handle in handles:
            handle.remove()
        return features, output
