from .corr import CorrBlock
from .nets import FeatureNet, UpdateNet
