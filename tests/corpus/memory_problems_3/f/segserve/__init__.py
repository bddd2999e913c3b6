"""Small instance segmentation service."""
