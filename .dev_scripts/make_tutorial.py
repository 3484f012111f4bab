"""Write docs/tutorials/notebook.md, the page of demo/tutorial.ipynb, with the outputs stored in it.

Links in the notebook are relative to demo/, those of the page to docs/tutorials/.

Examples:
  python .dev_scripts/make_tutorial.py --run     # from top to bottom first; stores the outputs
  python .dev_scripts/make_tutorial.py
  python .dev_scripts/make_tutorial.py --check   # exit status 1 if the page is not in step
"""

import base64
from pathlib import Path
from typing import Dict

import nbformat
from marked_tables import ROOT, parser_of_pages, write_pages

NOTEBOOK = ROOT / 'demo/tutorial.ipynb'
PAGE = ROOT / 'docs/tutorials/notebook.md'
PICTURES = ROOT / 'docs/images'
NOTE = """\
This page is the notebook `demo/tutorial.ipynb` as it was run, written by
`python .dev_scripts/make_tutorial.py`."""


def run(notebook: nbformat.NotebookNode) -> None:
    """All cells from top to bottom, in a fresh process that stands in demo/."""
    from nbclient import NotebookClient

    NotebookClient(
        notebook, kernel_name='python3', resources=dict(metadata=dict(path=str(NOTEBOOK.parent)))
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop('execution', None)  # the time of day


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


def main() -> None:
    parser = parser_of_pages(__doc__)
    parser.add_argument('--run', action='store_true', help='run the notebook and store its outputs')
    args = parser.parse_args()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    if args.run:
        run(notebook)
        nbformat.write(notebook, NOTEBOOK)
    write_pages(page(notebook), args)


if __name__ == '__main__':
    main()
