"""A day of traffic against the conversion service."""
import asyncio
import random

import torch

from convert_server import ConversionService, ConvertOptions


def upload(rng, index):
    pages = rng.randint(2, 4)
    return {"name": f"invoice_{index}.pdf", "pages": [torch.rand(3, 256, 192) for _ in range(pages)]}


def request_options(rng, pages):
    return ConvertOptions(
        do_ocr=rng.random() < 0.8,
        do_table_structure=rng.random() < 0.7,
        images_scale=rng.choice([1.0, 2.0]),
        page_range=(1, pages) if rng.random() < 0.6 else (1, 100),
        languages=rng.choice([["en"], ["de"], ["en", "fr"]]),
    )


async def client(service, name, requests):
    rng = random.Random(name)
    for index in range(requests):
        document = upload(rng, index)
        result = await service.submit(document, request_options(rng, len(document["pages"])))
        assert result["name"] == document["name"]
        await asyncio.sleep(0)


async def report(service, total):
    seen = -1
    while service.done < total:
        if service.done // 20 > seen:
            seen = service.done // 20
            print(f"{service.done} documents, {torch.cuda.memory_allocated() / 2**20:.0f} MiB allocated")
        await asyncio.sleep(0.01)


async def main(clients=4, requests=20):
    async with ConversionService(workers=1) as service:
        watcher = asyncio.create_task(report(service, clients * requests))
        await asyncio.gather(*(client(service, name, requests) for name in range(clients)))
        await watcher
        print(f"finished {service.done} documents, peak {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


asyncio.run(main())
