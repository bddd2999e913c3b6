from .lines import LineDataset, collate
from .net import LineReader
from .training import Trainer
