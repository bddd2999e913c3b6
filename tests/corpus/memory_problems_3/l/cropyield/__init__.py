"""Crop-yield modelling on field-trial records."""
