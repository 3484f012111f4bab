"""gradio, imported without what it does for those who write components."""

import inspect
from unittest import mock

find_file = inspect.getfile


def no_file(found) -> str:
    """``inspect.getfile``, except that it finds no file for gradio's classes."""
    if isinstance(found, type) and found.__module__.startswith('gradio.'):
        raise OSError(f'the file of {found.__name__} is not looked for')
    return find_file(found)


# While gradio is imported, it writes a file of event types beside each class whose file it finds.
# This takes 40 % of the import.
with mock.patch('inspect.getfile', no_file):
    import gradio

__all__ = ['gradio']
