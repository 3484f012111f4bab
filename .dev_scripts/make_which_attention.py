"""Write docs/which_attention.md and its picture from the logs of the probes and of the comparison.

Its advice is computed: of the attentions that solve the probes of a use, it names the cheapest.

Examples:
  python .dev_scripts/make_which_attention.py
  python .dev_scripts/make_which_attention.py --check   # exit status 1 if the page is not in step
"""

import sys
from pathlib import Path
from typing import Dict, NamedTuple, Tuple

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.comparison.attention_report import markdown
from mmlaplace.probes.report import MISSING, Table, draw, read_costs, tables
from mmlaplace.probes.results import read_results
from mmlaplace.probes.study import read_studies
from mmlaplace.probes.tasks import PROBES, build_probe

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / 'docs'
PAGE, PICTURE = DOCS / 'which_attention.md', DOCS / 'images/probes.png'
LOG, COSTS = DOCS / 'logs/probes.jsonl', DOCS / 'logs/compare_attentions.json'
SOLVED = 0.9  # of the way from a guess to a perfect answer
NAMED = 4  # attentions for each use


class Use(NamedTuple):
    """A use of attentions.

    Attributes:
        name: Its name.
        columns: Titles of the columns that matter for it.
        cost: The cost that matters for it.
    """

    name: str
    columns: Tuple[str, ...]
    cost: str


USES = (
    Use('exact recall: read, match or copy single tokens', ('recall',), 'ms 1024²'),
    Use('small images', ('recall', 'one of many'), 'ms 224²'),
    Use('detection at 1024²', ('one of many',), 'ms 1024²'),
    Use('dense prediction', ('recall',), 'MB 1024²'),
    Use('sequences', ('recall', 'one of many'), 'ms 1024²'),
    Use('mobile', ('one of many',), 'ms 224²'),
)
PAGE_TEXT = """\
# Which attention should I take?

For people who choose an attention. `python .dev_scripts/make_which_attention.py` writes this page
from [the probes' log](logs/probes.jsonl) and [the log of costs](logs/compare_attentions.json).

![Accuracy of each attention on each probe, and its cost](images/probes.png)

A probe is a small task that asks one thing of an attention: blue solves it, red guesses, and – was
not run. Costs are ms of a forward pass of one image and MB of a training pass, in
`LaplacianFormer-micro` on one CPU thread; a darker cell costs more.

## Take this if

Of the attentions that are at least 90 % of the way from a guess to a perfect answer, the cheapest,
each with its cost:

{advice}

The choice of probes for a use is ours. No model was trained on data of that use.

## The probes

{probes}

{training}

## What this means for LaplacianFormer

{laplacian}

## Not run

{missing}

## Run it again

```bash
python tools/analysis_tools/probe_attentions.py --list
python tools/analysis_tools/probe_attentions.py --out docs/logs/probes.jsonl  # adds runs
python .dev_scripts/make_which_attention.py
```
"""


def advice(table: Table, costs: Dict[str, Dict[str, float]]) -> str:
    """For each use, the cheapest attentions that solve its probes."""
    titles, rows = [column.title for column in table.columns], []
    for use in USES:
        numbers = [titles.index(title) for title in use.columns]
        able = {
            name: costs[name][use.cost]
            for name in table.rows
            if all((table.level(name, n) or 0) >= SOLVED for n in numbers)
            and use.cost in costs.get(name, {})
        }
        cheapest = sorted(able, key=able.__getitem__)[:NAMED]
        named = ', '.join(f'{name} ({able[name]:.0f})' for name in cheapest)
        rows.append([use.name, '; '.join(use.columns), use.cost, named or 'none'])
    return plain(['use', 'must solve', 'cost', 'take'], rows)


def plain(header: list, rows: list) -> str:
    return markdown(header, rows).replace('---:', '---')


def probes_section(table: Table) -> str:
    """A row for each probe, with its task, chance and paper."""
    rows = []
    for kind, seen in {column.probe['type']: column.probe for column in table.columns}.items():
        task = ' '.join((PROBES.get(kind).__doc__ or '').split('\n\n')[0].split())
        size = ', '.join(f'{name} {value}' for name, value in seen.items() if name != 'type')
        probe = build_probe(seen)
        chance = f'{100 * probe.chance:.0f}'
        rows.append([kind.replace('_', ' '), task, size, chance, probe.paper])
    return plain(['probe', 'task', 'here', 'chance, %', 'a claim of'], rows)


def training_section(table: Table) -> str:
    """How the models were trained, and how sure the figures are."""
    study = table.study
    cells = [c for row in table.rows.values() for c in row if c is not None]
    seeds, tried = min(c.seeds for c in cells), min(c.rates for c in cells)
    return (
        f'A model has {study.model["depth"]} blocks with {study.model["embed_dims"]} channels and '
        f'{study.model["num_heads"]} heads, and learns for at most {study.schedule["steps"]} steps '
        f'of {study.schedule["batch_size"]} maps of 8 x 16 tokens.\n'
        'So a low accuracy can also mean that an attention learns slowly. Attentions have their '
        'default options.\nIn *offset* they get rotary positions and a 3 x 3 convolution '
        'too, if they have these options.\n\n'
        f'**How sure.** Each cell has {seeds} seed and {tried} learning rate, '
        f'{study.rates[0]}, of the {len(study.rates)} in the plan. Read a\ndifference between blue '
        'and red, and not one between neighbours. Softmax itself has '
        f'{100 * (table.accuracy("Softmax", 1) or 0):.0f} % in one of many.'
    )


LANDMARKS = """\
**Pooled landmarks lose single tokens, and the kernel does not.** Recall of 56 pairs on a map of 128
tokens, in %, one seed:

{table}

A landmark is the mean of the tokens of a cell. With 64 channels recall rises from 16 to 80
landmarks. With 32 channels the attention learns nothing in 800 steps unless each token is a
landmark. The kernel without landmarks learns in both.
{cut}

So where single tokens count, such as text in images or matching, give `LaplacianFormer` more
landmarks, `attn_cfg=dict(num_landmarks=196)`, or take an attention that solves recall. With 196,
all tokens of the third stage are landmarks at 224². In the last stage, 49 already are all. More
landmarks cost time, and we have not measured on images whether they help. The default stays at 49,
as in the paper.

`SOFTAttention` guesses in recall and one of many. Its output is [far smaller than that of its
convolution](soft_and_polaformer.md#when-does-softs-attention-contribute).
"""
ROWS = (  # of a row of the table: its name in both studies
    ('16 landmarks, 4 x 4', 'Laplacian, 16 landmarks', 'Laplacian, 16 landmarks (4 x 4)'),
    ('49 landmarks, 7 x 7 (default)', 'Laplacian', 'Laplacian, 49 landmarks (7 x 7)'),
    ('80 landmarks, 8 x 10', 'Laplacian, 80 landmarks', 'Laplacian, 80 landmarks (8 x 10)'),
    ('all 128 tokens', 'Laplacian, all 128 tokens', 'Laplacian, all 128 tokens'),
    ('the kernel without landmarks', *['Laplacian kernel without landmarks'] * 2),
    ('softmax', 'Softmax', ''),
)


def laplacian_section(found: Dict[str, Table]) -> str:
    """The landmarks of LaplacianAttention, with the figures of the log."""
    long, short, rows, cut = found['recall'], found['landmarks'], [], ''
    for name, of_long, of_short in ROWS:
        column = len(long.columns) - 1  # of 56 pairs
        cells = [long.accuracy(of_long, column), None]
        if of_short in short.rows:
            cells[1] = short.accuracy(of_short, 0)
        run = long.rows[of_long][column]
        if run is not None and run.seconds >= long.study.schedule['seconds']:
            cut = f'The run of {name} with 64 channels ended at two minutes, step {run.steps:.0f}.'
        rows.append([name, *(MISSING if cell is None else f'{100 * cell:.0f}' for cell in cells)])
    header = ['LaplacianAttention with', '64 channels, 1,500 steps', '32 channels, 800 steps']
    return LANDMARKS.format(table=markdown(header, rows), cut=cut).strip()


def missing_section(found: Dict[str, Table]) -> str:
    """The attentions and probes without results, and the rest of the plan."""
    table, lines = found['attentions'], []
    for number, column in enumerate(table.columns):
        names = [n for n in table.study.attentions if table.rows.get(n, [None] * 9)[number] is None]
        if names and column.scale == '1':
            ran = len(table.study.attentions) - len(names)
            which = f': {"; ".join(names)}' if len(names) <= 6 else ''
            lines.append(f'- {column.title}: {ran} attentions ran, {len(names)} did not{which}.')
    noise = found['noise']
    best = max(noise.accuracy(name, 0) or 0 for name in noise.rows)
    lines.append(
        f'- *Noise*, recall of 8 pairs among 96 others, is too hard for this schedule: no '
        f'attention, softmax included, is above {100 * best:.1f} %. So it is not in the picture.'
    )
    lines.append(
        '- Further seeds and learning rates, drawn landmarks (`--study landmarks`), larger maps '
        '(`--study large`), the largest number of pairs, and whether a probe predicts the accuracy '
        'on images.'
    )
    return '\n'.join(lines)


def page(found: Dict[str, Table], costs: Dict[str, Dict[str, float]]) -> str:
    """The whole page."""
    main = found['attentions']
    return PAGE_TEXT.format(
        advice=advice(main, costs),
        probes=probes_section(main),
        training=training_section(main),
        laplacian=laplacian_section(found),
        missing=missing_section(found),
    )


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--check', action='store_true', help='only say whether it is in step')
    args = parser.parse_args()
    found, costs = tables(read_results(LOG), read_studies()), read_costs(COSTS)
    text = page(found, costs)
    if args.check:
        if not (PAGE.is_file() and PAGE.read_text() == text):
            sys.exit(f'{PAGE.name} is not in step; run python .dev_scripts/{Path(__file__).name}')
        return
    PAGE.write_text(text)
    draw(found['attentions'], PICTURE, costs)
    print(f'wrote {PAGE.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}')


if __name__ == '__main__':
    main()
