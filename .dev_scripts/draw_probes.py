"""Draw the heat map of docs/which_attention.md, and the small one of the README, after new results.

make_pages.py makes the tables of the same logs.

Examples:
  python .dev_scripts/draw_probes.py
"""

from typing import Dict

from pages.files import ROOT
from pages.which_attention import AT_224, AT_1024, on_images, read, titles_of

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.probes.prediction import TrainedHere
from mmlaplace.lab.probes.report import Table, draw

IMAGES = ROOT / 'docs/images'
# In the small picture: the reference, the project's three papers, and attentions of backbones whose
# weights are released; probes whose names say what they ask, and the cost at two sizes.
SHOWN = (
    'Softmax',
    'Laplacian',
    'Laplacian, rows',
    'SOFT',
    'Pola',
    'Agent',
    'FLatten',
    'MLLA',
    'MALA',
)
FEW = ('recall', 'one of many', 'offset', 'count, 4x map')


def draw_small(
    table: Table, images: Dict[str, TrainedHere], costs: Dict[str, Dict[str, float]]
) -> None:
    """Draw a few attentions and columns of the heat map."""
    numbers = [titles_of(table).index(title) for title in FEW]
    rows = {
        name: [cells[n] for n in numbers] for name, cells in table.rows.items() if name in SHOWN
    }
    few = table._replace(columns=[table.columns[n] for n in numbers], rows=rows)
    times = {
        name: {key: costs[name][key] for key in (*AT_224, AT_1024[0])}
        for name in rows
        if name in costs
    }
    draw(few, IMAGES / 'probes_small.png', images, times)


def main() -> None:
    ToolParser(__doc__).parse_args()
    found, costs, facts = read()
    here = on_images()
    draw(found['attentions'], IMAGES / 'probes.png', here, costs, facts)
    draw_small(found['attentions'], here, costs)


if __name__ == '__main__':
    main()
