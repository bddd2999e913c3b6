"""Access to the activations of named layers of an encoder."""


class FeatureExtractorHandle:
    def __init__(self, detach=True):
        self.detach = detach
        self.outputs = []

    def __call__(self, module, inputs, output):
        self.outputs.append(output.detach() if self.detach else output)

    def reset(self):
        self.outputs = []


class FeatureExtractor:
    def __init__(self, encoder, layers, detach=True):
        self.encoder = encoder
        self.handles = {}
        modules = dict(encoder.named_modules())
        for layer in layers:
            handle = FeatureExtractorHandle(detach)
            modules[layer].register_forward_hook(handle)
            self.handles[layer] = handle

    def run(self, x):
        for handle in self.handles.values():
            handle.reset()
        self.encoder(x)
        return {layer: handle.outputs[0] for layer, handle in self.handles.items()}
