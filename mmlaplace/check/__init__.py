"""Check an installation of mmlaplace: ``python -m mmlaplace check``."""

from .finding import Finding
from .library import library_problem, loaded_library
from .report import main

__all__ = ['Finding', 'library_problem', 'loaded_library', 'main']
