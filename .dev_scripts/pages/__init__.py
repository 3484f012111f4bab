"""Generated files, a module for those of one kind. Each has ``update(files)``."""
