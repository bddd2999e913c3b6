from .field import RadianceField
from .render import Camera, render_view

__all__ = ["RadianceField", "Camera", "render_view"]
