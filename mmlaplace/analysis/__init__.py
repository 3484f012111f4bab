"""Measure a model: its attention matrices, its operations, its time and its memory."""
