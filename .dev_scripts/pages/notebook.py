"""The page of demo/tutorial.ipynb, with the outputs stored in it.

Links in the notebook are relative to demo/, those of the page to docs/tutorials/.
"""

import base64
from pathlib import Path
from typing import Dict

import nbformat

from .files import ROOT, Files

NOTEBOOK = ROOT / 'demo/tutorial.ipynb'
PAGE = ROOT / 'docs/tutorials/notebook.md'
PICTURES = ROOT / 'docs/images'
NOTE = """\
This page is the notebook `demo/tutorial.ipynb` as it was run, written by
`python .dev_scripts/make_pages.py`."""


def update(files: Files) -> None:
    for path, content in page(nbformat.read(NOTEBOOK, as_version=4)).items():
        files.write(path, content)


def page(notebook: nbformat.NotebookNode) -> Dict[Path, bytes]:
    """The page and its pictures, by their paths."""
    parts = []
    files = {}
    for cell in notebook.cells:
        if cell.cell_type == 'markdown':
            text = cell.source.replace('](../docs/tutorials/', '](')
            parts.append(text.replace('](../docs/', '](../'))
            continue
        parts.append(f'```python\n{cell.source}\n```')
        for output in cell.outputs:
            data = output.get('data', {'text/plain': output.get('text', '')})
            if 'image/png' in data:
                path = PICTURES / f'notebook_{len(files) + 1}.png'
                files[path] = base64.b64decode(data['image/png'])
                parts.append(f'![Output of the cell above](../images/{path.name})')
            else:
                parts.append(f'```text\n{data["text/plain"].rstrip()}\n```')
    title, rest = parts[0].split('\n', 1)
    whole = '\n\n'.join([title, NOTE, rest.strip(), *parts[1:]])
    return {PAGE: f'{whole}\n'.encode(), **files}
