"""New figures, and files of them. matplotlib is imported with the first figure."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Tuple

from ..writing import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(
    rows: int, columns: int, size: Tuple[float, float], **options: Any
) -> Tuple['Figure', Any]:
    """A figure that belongs to no window, and its axes.

    Args:
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        size: Width and height in inches.
        options: Further arguments of ``matplotlib.figure.Figure.subplots``.
    """
    from matplotlib.figure import Figure

    figure = Figure(size, layout='constrained')
    return figure, figure.subplots(rows, columns, **options)


def save(figure: 'Figure', path: Path, dpi: int = 110) -> None:
    """Write a figure whole, or not at all. The end of ``path`` names the format."""
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=dpi)


def where(machine: Dict[str, str]) -> str:
    """The GPU of a machine, or its CPU and threads, for the title of a figure."""
    if 'GPU' in machine:
        return machine['GPU']
    threads = '1 thread' if machine['threads'] == '1' else f'{machine["threads"]} threads'
    return f'{machine["CPU"]}, {threads}'
