import time

import torch


class Engine:
    def __init__(self, model, device, temperature=0.7, top_k=40, max_new=24):
        self.model, self.device = model, device
        self.temperature, self.top_k, self.max_new = temperature, top_k, max_new

    def pick(self, logits):
        values, index = (logits / self.temperature).topk(self.top_k, dim=-1)
        choice = torch.multinomial(torch.softmax(values, dim=-1), 1)
        return index.gather(-1, choice)

    @torch.inference_mode()
    def complete(self, prompt):
        started = time.time()
        tokens = torch.tensor([prompt], device=self.device)
        produced, caches = [], None
        for _ in range(self.max_new):
            logits, caches = self.model(tokens, caches)
            tokens = self.pick(logits[:, -1])
            produced.append(tokens)
        answer = torch.cat(produced, dim=1)[0].cpu().tolist()
        return {"prompt_tokens": len(prompt), "completion_tokens": len(answer), "seconds": time.time() - started}
