from .curves import HarmonicModel, survey_fields
from .solver import CurvatureFit

__all__ = ["HarmonicModel", "survey_fields", "CurvatureFit"]
