from .source import FrameSource
from .embed import AppearanceNet
from .tracks import Track, TrackTable
