"""Run demo/tutorial.ipynb from top to bottom, and store the outputs in it.

Then make_pages.py makes its page.

Examples:
  python .dev_scripts/run_tutorial.py
"""

import nbformat
from pages.notebook import NOTEBOOK

from mmlaplace.commands.command_line import ToolParser


def run(notebook: nbformat.NotebookNode) -> None:
    """All cells from top to bottom, in a fresh process that stands in demo/."""
    from nbclient import NotebookClient

    NotebookClient(
        notebook, kernel_name='python3', resources=dict(metadata=dict(path=str(NOTEBOOK.parent)))
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop('execution', None)  # the time of day


def main() -> None:
    ToolParser(__doc__).parse_args()
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    run(notebook)
    nbformat.write(notebook, NOTEBOOK)


if __name__ == '__main__':
    main()
