"""Chat completions over an in-process server; a crowd of clients holds conversations with it."""
import asyncio
import random

import torch

from report_chat_server_lib.engine import CausalLM, Engine

MODEL_NAME = "assistant-60m"


class ChatServer:
    def __init__(self, engine):
        self.engine = engine
        self.served = 0

    def encode(self, messages):
        ids = []
        for message in messages:
            ids.extend(sum(map(ord, word)) % 8000 for word in message["content"].split())
            ids.append(1)
        return ids

    async def chat_completions(self, request):
        if request.get("model") != MODEL_NAME:
            return {"error": {"code": 404, "message": f"no model {request.get('model')}"}}
        prompt = self.encode(request["messages"])[-1024:]
        result = await self.engine.generate(prompt, request.get("max_tokens", 16))
        self.served += 1
        return {"choices": [{"message": {"role": "assistant", "content": result["text"]}}],
                "usage": {"prompt_tokens": len(prompt), "completion_tokens": result["tokens"]}}


class Client:
    def __init__(self, server, seed):
        self.server = server
        self.random = random.Random(seed)

    async def converse(self, turns):
        messages = [{"role": "system", "content": "You answer questions about the code of this repository. " * 6}]
        used = 0
        for _ in range(turns):
            question = " ".join(f"w{self.random.randrange(5000)}" for _ in range(self.random.randint(20, 160)))
            messages.append({"role": "user", "content": question})
            answer = await self.server.chat_completions(
                {"model": MODEL_NAME, "messages": messages, "max_tokens": self.random.randint(4, 20)})
            messages.append(answer["choices"][0]["message"])
            used += answer["usage"]["completion_tokens"]
        return used


async def watch(server, every=0.05):
    while True:
        print(f"served {server.served}, pending {server.engine.pending()}, "
              f"{torch.cuda.memory_allocated() / 2**20:.0f} MiB", flush=True)
        await asyncio.sleep(every)


async def main(clients=6, turns=30):
    server = ChatServer(Engine(CausalLM().cuda().eval()))
    background = [asyncio.create_task(server.engine.loop()), asyncio.create_task(watch(server))]
    used = await asyncio.gather(*[Client(server, seed).converse(turns) for seed in range(clients)])
    for task in background:
        task.cancel()
    await asyncio.gather(*background, return_exceptions=True)
    print("tokens", sum(used), "served", server.served)
    print("max allocated", torch.cuda.max_memory_allocated() // 2**20, "MiB")


if __name__ == "__main__":
    asyncio.run(main())
