"""Which softmax blocks a hybrid keeps, by the change of maps or by the task, and what λ does.

A ViT of six blocks with softmax is trained for each task, as in study_hybrids.py. Hybrids of it
keep the blocks that do the most harm to the maps alone (the surrogate), or those that a greedy
search by the score of the trained head keeps. That score is of images which no other part of the
study sees. Another part learns the task's loss with labels, and attentions with three weights λ. A
finished run is not repeated, and a killed call goes on. Tasks without data are left out.

Examples:
  python tools/dataset_converters/make_mini_datasets.py \\
      --tasks textures segmentation rendered fashion
  python studies/study_block_search.py         # all runs that the log lacks
  python studies/study_block_search.py --draw  # the picture, and the tables of the page
"""

import statistics
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Dict, List, Sequence, Tuple

import torch
from hybrids.study import LABELS, MAIN, SEEDS, SIDE, Run, Study
from study_hybrids import TIMES, TITLES, cell, groups, mean_and_width, plot, share_of_time

from mmlaplace.commands.command_line import ToolParser, read_json
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.lab.probes.results import by_key, read_results
from mmlaplace.lab.side_by_side.seed_differences import half_width, short
from mmlaplace.writing import markdown_table, with_tables, write_whole

ROOT = Path(__file__).resolve().parents[1]
LOG, PAGE = ROOT / 'docs/logs/block_search.jsonl', ROOT / 'docs/linearize.md'
PICTURE = ROOT / 'docs/images/block_search.png'
SURROGATE, GREEDY, BEAM = 'harm', 'task', 'task, beam 3'
ATTENTIONS = ('LaplacianAttention', 'LaplacianAttention, rows', 'AgentAttention', MAIN)
KEPT = (2, 1, 3)
WEIGHTS = (5, 50, 500)
PLAN: List[List[Run]] = [
    [(name, way, 2) for name in ATTENTIONS for way in (SURROGATE, GREEDY)],
    [(MAIN, SURROGATE, 0), *((MAIN, f'{LABELS}{weight}', 0) for weight in WEIGHTS)],
    [(name, way, keep) for keep in KEPT[1:] for name in ATTENTIONS for way in (SURROGATE, GREEDY)],
    [(ATTENTIONS[0], BEAM, 2)],
]


def difference(
    found: Dict[tuple, List[dict]], task: str, attention: str, way: str, keep: int
) -> str:
    """By how much a way scores above the surrogate, at both sizes, with intervals of the seeds."""
    ways = [found.get((task, attention, one, keep), []) for one in (way, SURROGATE)]
    if min(map(len, ways)) < len(SEEDS):
        return 'not run'
    texts = []
    for size in ('small', 'large'):
        pairs = [a[size] - b[size] for a, b in zip(*ways)]
        texts.append(f'{statistics.mean(pairs):+.1f} ± {half_width(pairs):.1f}')
    return '; '.join(texts)


def search_table(results: Sequence[dict]) -> str:
    """Differences of the search by the task to the surrogate."""
    found, kept, rows = groups(results), kept_blocks(results), []
    ways = [(name, GREEDY, keep) for name in ATTENTIONS for keep in sorted(KEPT)]
    for attention, way, keep in (*ways, (ATTENTIONS[0], BEAM, 2)):
        title = f'{short(attention)}, {keep} kept' + ', beam of 3' * (way == BEAM)
        cells = []
        for task in TITLES:
            blocks = {kept.get((task, attention, one, keep)) for one in (way, SURROGATE)}
            same = len(blocks) == 1 and None not in blocks
            cells.append(
                'the same blocks' if same else difference(found, task, attention, way, keep)
            )
        rows.append([title, *cells])
    how = (
        'What the search by the score adds to the choice by the change of maps: differences of '
        f'equal seeds at {SIDE}²; at {2 * SIDE}², with 95 % intervals of {len(SEEDS)} seeds of the '
        'imitation. Each way chose once.'
    )
    return f'{fill(how, 120)}\n\n{markdown_table(["", *TITLES.values()], rows)}'


def kept_blocks(results: Sequence[dict]) -> Dict[tuple, Tuple[int, ...]]:
    """The numbers of the softmax blocks that runs kept."""
    names = ('task', 'attention', 'variant', 'keep')
    return {
        tuple(result['settings'].get(name) for name in names): tuple(sorted(result['kept']))
        for result in results
        if isinstance(result.get('kept'), list)
    }


def label_table(results: Sequence[dict]) -> str:
    """Scores with labels and three weights of the attentions' outputs."""
    found = groups(results)
    rows = [['softmax', *(whole(found, task) for task in TITLES)]]
    for title, way in (
        ('maps and logits, no labels', SURROGATE),
        *((f'{LABELS}{weight}', f'{LABELS}{weight}') for weight in WEIGHTS),
    ):
        cells = [cell(found.get((task, MAIN, way, 0), ()), len(SEEDS)) for task in TITLES]
        rows.append([title, *cells])
    how = (
        f'All blocks are {short(MAIN)}, learned layer by layer, and then as a whole from what the '
        f'row says. Scores are at {SIDE}²; at {2 * SIDE}², as above.'
    )
    return f'{fill(how, 120)}\n\n{markdown_table(["", *TITLES.values()], rows)}'


def whole(found: Dict[tuple, List[dict]], task: str) -> str:
    """The scores of the model with softmax, which was trained once."""
    scores = found.get((task, None, 'softmax', None))
    return f'{scores[0]["small"]:.1f}; {scores[0]["large"]:.1f}' if scores else 'not run'


def table(kind: str, results: Sequence[dict]) -> str:
    return dict(search=search_table, labels=label_table)[kind](results)


def draw(results: Sequence[dict], times: dict, path: Path) -> None:
    """Scores at four times the tokens over time, of both ways."""
    found, side = groups(results), max(times['small'], key=int)
    timed = [name for name in ATTENTIONS if f'{name} 0' in times['small'][side]]
    tasks = [task for task in TITLES if (task, None, 'softmax', None) in found]
    figure, axes = new_figure(1, len(tasks), (2.75 * len(tasks), 3.2), sharex=True, squeeze=False)
    for panel, task in zip(axes[0], tasks):
        (softmax,) = found[task, None, 'softmax', None]
        panel.axhline(softmax['large'], color='black', lw=0.8, ls=':', label='softmax')
        for attention, colour in zip(timed, ('C0', 'C1', 'C2', 'C3')):
            for way, line, name in ((SURROGATE, '--', 'maps'), (GREEDY, '-', 'score')):
                points = [
                    (share_of_time(times, attention, keep), *mean_and_width(scores, 'large'))
                    for keep in sorted(KEPT)
                    if (scores := found.get((task, attention, way, keep)))
                ]
                plot(panel, points, colour, f'{short(attention)}, by {name}', line)
        panel.grid(alpha=0.3)
        panel.set_title(TITLES[task], fontsize=10)
    axes[0, 0].set_ylabel(f'at {2 * SIDE}²')
    figure.supxlabel(f"time at {side}² / softmax model's", fontsize=10)
    figure.legend(
        *axes[0, 0].get_legend_handles_labels(), loc='outside upper center', ncols=3, fontsize=9
    )
    save(figure, path, dpi=100)


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=list(TITLES), default=list(TITLES))
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/block_search'))
    parser.add_argument('--draw', action='store_true', help='the picture, and the tables')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.draw:
        results = list(by_key(read_results(LOG)).values())
        draw(results, read_json(TIMES), PICTURE)
        tables = with_tables(PAGE.read_text(), 'block search', partial(table, results=results))
        write_whole(PAGE, tables)
    else:
        found = [task for task in args.tasks if (args.data_root / task).is_dir()]
        for task in set(args.tasks) - set(found):
            print(f'{args.data_root / task} is missing, so this task is left out')
        shown = partial(print, flush=True)
        Study(LOG, args.data_root, args.work_dir, shown).run_all(found, PLAN)


if __name__ == '__main__':
    main()
