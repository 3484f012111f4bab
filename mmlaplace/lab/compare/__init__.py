"""A user's attention beside others: ``python -m mmlaplace compare``."""
