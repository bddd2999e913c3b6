"""Document conversion behind an asyncio queue."""
import asyncio
import hashlib
import json
from dataclasses import asdict, dataclass, field

import torch
from torch import nn


@dataclass
class ConvertOptions:
    do_ocr: bool = True
    do_table_structure: bool = True
    images_scale: float = 2.0
    page_range: tuple = (1, 100)
    languages: list = field(default_factory=lambda: ["en"])

    def digest(self):
        return hashlib.sha1(json.dumps(asdict(self), sort_keys=True).encode()).digest()


class LayoutModel(nn.Module):
    def __init__(self, labels=17, width=256):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True) for _ in range(4))
        self.head = nn.Linear(width, labels)

    def forward(self, page):
        x = self.patch(page).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x).argmax(dim=-1)


class TextRecognizer(nn.Module):
    def __init__(self, alphabet=4_000, width=448):
        super().__init__()
        self.features = nn.Conv2d(3, width, (32, 8), stride=(32, 8))
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.classify = nn.Linear(width, alphabet)

    def forward(self, page):
        x = self.features(page).flatten(2).transpose(1, 2)
        return self.classify(self.mix(x)).argmax(dim=-1)


class TableFormer(nn.Module):
    def __init__(self, width=512, tags=13):
        super().__init__()
        self.encoder = nn.Conv2d(3, width, 32, stride=32)
        self.decoder = nn.Sequential(nn.Linear(width, 6 * width), nn.ReLU(), nn.Linear(6 * width, width), nn.Linear(width, tags))

    def forward(self, page):
        return self.decoder(self.encoder(page).flatten(2).transpose(1, 2)).argmax(dim=-1)


class DocumentConverter:
    def __init__(self, options, device="cuda"):
        self.options, self.device = options, device
        self.stages = {"layout": LayoutModel().to(device).eval()}
        if options.do_ocr:
            self.stages["text"] = TextRecognizer().to(device).eval()
        if options.do_table_structure:
            self.stages["tables"] = TableFormer().to(device).eval()

    @torch.inference_mode()
    def convert(self, document):
        first, last = self.options.page_range
        pages = []
        for page in document["pages"][first - 1:last]:
            size = [int(side * self.options.images_scale) for side in page.shape[-2:]]
            image = nn.functional.interpolate(page[None].to(self.device), size=size)
            pages.append({name: stage(image).cpu().numel() for name, stage in self.stages.items()})
        return {"name": document["name"], "pages": pages}


class ConversionService:
    def __init__(self, workers):
        self.queue = asyncio.Queue(maxsize=16)
        self.workers = workers
        self.converters = {}
        self.options_map = {}
        self.done = 0

    def get_converter(self, options):
        key = options.digest()
        self.options_map[key] = options
        if key not in self.converters:
            self.converters[key] = DocumentConverter(options)
        return self.converters[key]

    async def submit(self, document, options):
        future = asyncio.get_running_loop().create_future()
        await self.queue.put((document, options, future))
        return await future

    async def worker(self):
        while True:
            document, options, future = await self.queue.get()
            try:
                future.set_result(self.get_converter(options).convert(document))
                self.done += 1
            except Exception as error:
                future.set_exception(error)
            finally:
                self.queue.task_done()

    async def __aenter__(self):
        self.tasks = [asyncio.create_task(self.worker()) for _ in range(self.workers)]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
