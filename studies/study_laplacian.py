"""Which part of Laplacian attention keeps what a softmax ViT has learned: docs/laplacian_forms.md.

A ViT of six blocks with softmax is trained for each task, as in study_hybrids.py. Then a form of
Laplacian attention takes the place of softmax, by copied weights, and imitates it for 40 steps. A
finished run is not repeated, and a killed call goes on. Tasks whose data is missing are left out.

Examples:
  python tools/dataset_converters/make_mini_datasets.py \\
      --tasks textures segmentation rendered fashion
  python studies/study_laplacian.py          # all runs that the log lacks: about an hour of a core
  python studies/study_laplacian.py --table  # the tables of the page
"""

import statistics
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import Dict, List, Sequence, Tuple

import torch
from hybrids.farthest import FarthestLaplacianAttention
from hybrids.study import BATCH, SEEDS, SIDE, STEPS, Study, linear_cfg  # noqa: F401  (for tests)
from study_hybrids import TITLES

from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.probes.results import by_key, read_results
from mmlaplace.lab.side_by_side.seed_differences import half_width
from mmlaplace.writing import markdown_table, with_tables, write_whole

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / 'docs/laplacian_forms.md'
LOGS = {heads: ROOT / f'docs/logs/laplacian_{64 // heads}.jsonl' for heads in (2, 1)}
TODAY = 'LaplacianAttention'
ROWS = f'{TODAY}, normalization=rows, landmarks_from=queries'
EXACT = 'KernelAttention, kernel=laplacian'
FRAMED = f'{EXACT}, rope=true, lepe_kernel=3'
Form = Tuple[str, str, int]  # the title in the table, the attention, and the softmax blocks kept

# The forms by the question that they answer. All have 16 landmarks unless they are named.
QUESTIONS: Dict[str, List[Form]] = {
    'parts': [
        ("the paper's form: whitened, landmarks of keys", TODAY, 0),
        ('whitened, landmarks of queries', f'{TODAY}, landmarks_from=queries', 0),
        ('whitened, centred over keys', f'{TODAY}, centred_over=keys', 0),
        ('whitened, centred over both', f'{TODAY}, centred_over=both', 0),
        ('not normalised', f'{TODAY}, normalization=none', 0),
        ('rows, landmarks of keys', f'{TODAY}, normalization=rows', 0),
        ('**rows, landmarks of queries**', ROWS, 0),
        ('rows, landmarks of both', f'{TODAY}, normalization=rows, landmarks_from=both', 0),
        ('the exact kernel, whitened', f'{FRAMED}, normalization=whitened', 0),
        ('the exact kernel, rows', f'{FRAMED}, normalization=rows', 0),
        ('rows, landmarks of queries, Gaussian', f'{ROWS}, kernel=gaussian', 0),
    ],
    'bandwidth': [
        ('λ = 2', f'{ROWS}, bandwidth=2', 0),
        ('λ = 4', ROWS, 0),
        ('λ = 6', f'{ROWS}, bandwidth=6', 0),
        ('λ = 8', f'{ROWS}, bandwidth=8', 0),
        ('λ = d / 10', f'{ROWS}, bandwidth={{tenth}}', 0),
    ],
    'landmarks': [
        ('16 averages', ROWS, 0),
        ('49 averages', f'{ROWS}, num_landmarks=49', 0),
        (
            '16 of a strided convolution',
            f'{ROWS}, landmark_method=conv, pool_ratio=2, num_landmarks=16',
            0,
        ),
        ('16 random tokens', f'{ROWS}, landmark_method=random', 0),
        ('16 farthest tokens', ROWS.replace(TODAY, FarthestLaplacianAttention.__name__), 0),
    ],
    'frame': [
        ('rope and convolution', ROWS, 0),
        ('no rope', f'{ROWS}, rope=false', 0),
        ('no convolution', f'{ROWS}, lepe_kernel=0', 0),
        ('neither', f'{ROWS}, rope=false, lepe_kernel=0', 0),
        ('neither, the exact kernel', f'{EXACT}, normalization=rows', 0),
    ],
    'kept': [
        ('no block of softmax', ROWS, 0),
        ('one block', ROWS, 1),
        ('two blocks', ROWS, 2),
    ],
}
# With heads of 64 channels, only these questions are asked.
OF_ONE_HEAD = ('parts', 'bandwidth')


def forms(num_heads: int) -> List[Tuple[str, int]]:
    """The attentions, and the kept blocks, of all questions, each once."""
    questions = QUESTIONS if num_heads > 1 else OF_ONE_HEAD
    rows = [form for question in questions for form in QUESTIONS[question]]
    return list(dict.fromkeys((named(name, num_heads), keep) for _, name, keep in rows))


def named(attention: str, num_heads: int) -> str:
    """The attention's name with a tenth of the channels of a head."""
    return attention.format(tenth=6.4 / num_heads)


def run(study: Study, task: str, attention: str, keep: int, seed: int) -> None:
    study.run(
        study.hybrid,
        task=task,
        attention=attention,
        variant='harm',
        keep=keep,
        seed=seed,
        **STEPS,
    )


def cell(runs: Sequence[dict]) -> str:
    """Copied alone, after the steps, and then on images of four times the tokens."""
    if not runs:
        return 'not run'
    texts = []
    for values in (
        [run['swapped'] for run in runs],
        [run['score']['small'] for run in runs],
        [run['score']['large'] for run in runs],
    ):
        width = f' ± {half_width(values):.1f}' if len(set(values)) > 1 else ''
        texts.append(f'{statistics.mean(values):.1f}{width}')
    seeds = f' ({len(runs)} of {len(SEEDS)} seeds)' if len(runs) != len(SEEDS) else ''
    return ' → '.join(texts[:2]) + f'; {texts[2]}{seeds}'


def table(question: str, num_heads: int, results: Sequence[dict]) -> str:
    """The scores of the forms of a question, on each task that any of them was run on."""
    found: Dict[tuple, List[dict]] = {}
    softmax: Dict[str, dict] = {}
    for result in results:
        settings = result['settings']
        if settings['variant'] == 'softmax':
            softmax[settings['task']] = result['score']
        elif 'score' in result:
            key = settings['task'], settings['attention'], settings['keep']
            found.setdefault(key, []).append(result)
    asked = [(title, named(name, num_heads), keep) for title, name, keep in QUESTIONS[question]]
    tasks = [task for task in TITLES if any((task, *form) in found for _, *form in asked)]
    whole = [f'{softmax[task]["small"]:.1f}; {softmax[task]["large"]:.1f}' for task in tasks]
    rows = [['softmax', *whole]]
    for title, *form in asked:
        rows.append([title, *(cell(found.get((task, *form), ())) for task in tasks)])
    how = (
        f'With {64 // num_heads} channels a head: copied alone → after {sum(STEPS.values())} steps '
        f'of {BATCH} images at {SIDE}²; then at {2 * SIDE}², with 95 % intervals of '
        f'{len(SEEDS)} seeds of the imitation.'
    )
    return f'{fill(how, 120)}\n\n{markdown_table(["", *(TITLES[task] for task in tasks)], rows)}'


def table_of(name: str, results: Dict[int, Sequence[dict]]) -> str:
    """The table of a place of the page, such as ``parts-32``."""
    question, channels = name.split('-')
    num_heads = 64 // int(channels)
    return table(question, num_heads, results[num_heads])


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=list(TITLES), default=list(TITLES))
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/laplacian'))
    parser.add_argument('--heads', type=int, nargs='+', choices=list(LOGS), default=list(LOGS))
    parser.add_argument('--table', action='store_true', help='write the tables of the page')
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.table:
        results = {heads: list(by_key(read_results(log)).values()) for heads, log in LOGS.items()}
        text = with_tables(PAGE.read_text(), 'laplacian', partial(table_of, results=results))
        write_whole(PAGE, text)
        return
    tasks = [task for task in args.tasks if (args.data_root / task).is_dir()]
    for task in set(args.tasks) - set(tasks):
        print(f'{args.data_root / task} is missing, so this task is left out')
    shown = partial(print, flush=True)
    for num_heads in args.heads:
        work_dir = args.work_dir / str(64 // num_heads)
        study = Study(LOGS[num_heads], args.data_root, work_dir, shown, num_heads)
        for (attention, keep), task, seed in product(forms(num_heads), tasks, SEEDS):
            run(study, task, attention, keep, seed)


if __name__ == '__main__':
    main()
