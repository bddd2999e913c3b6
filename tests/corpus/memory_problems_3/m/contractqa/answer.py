import torch


class Answerer:
    def __init__(self, model, device, max_new_tokens=8, temperature=0.7):
        self.model = model
        self.device = device
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature

    def pick(self, logits):
        probs = (logits[:, -1].float() / self.temperature).softmax(-1)
        return probs.topk(1, dim=-1).indices

    @torch.inference_mode()
    def answer(self, prompts):
        ids = prompts.to(self.device)
        caches = self.model.new_caches()
        logits = self.model(ids, caches)
        produced = []
        for i in range(self.max_new_tokens):
            token = self.pick(logits)
            produced.append(token)
            logits = self.model(token, caches, offset=ids.shape[1] + i)
        return torch.cat(produced, dim=1).cpu()
