import torch


def sample(logits, temperature, top_k, generator):
    values, indices = (logits / temperature).topk(top_k, dim=-1)
    noise = -torch.log(-torch.log(torch.rand(values.shape, generator=generator).clamp(1e-6, 1 - 1e-6)))
    choice = (values + noise.to(values.device)).argmax(-1, keepdim=True)
    return indices.gather(-1, choice.clamp(0, top_k - 1))


class Summariser:
    def __init__(self, model, temperature=0.7, top_k=40, seed=0):
        self.model = model.eval()
        self.temperature = temperature
        self.top_k = top_k
        self.generator = torch.Generator().manual_seed(seed)

    @torch.inference_mode()
    def __call__(self, prompts, new_tokens):
        logits, cache = self.model(prompts)
        out = []
        for _ in range(new_tokens):
            token = sample(logits[:, -1], self.temperature, self.top_k, self.generator)
            token = token.clamp(0, self.model.embed.num_embeddings - 1)
            out.append(token)
            logits, cache = self.model(token, cache)
        return torch.cat(out, 1).cpu()
