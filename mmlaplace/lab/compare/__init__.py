"""Attentions beside one another: ``python -m mmlaplace compare``."""
