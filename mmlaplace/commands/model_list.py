"""``python -m mmlaplace list``: a table of the models."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, Sequence

from rich.console import Console
from rich.table import Table

from ..checkpoints import PUBLISHED
from ..checkpoints.dense import DENSE
from ..checkpoints.published import describe
from ..checkpoints.released import spelled
from ..model_zoo import TASKS, ModelInfo, find_models, list_models, matches, near_names
from ..models import FAMILIES
from ..toolboxes import TOOLBOXES

COLUMNS = ('name', 'task', 'params (M)', 'MACs (G)', 'published score', 'licence', 'config')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command, and the function that runs it."""
    parser.description = (
        'List the models and backbones. Parameters and MACs are counted on our models, – where '
        'they are not counted. Those of a backbone are of its classifier, with the head. Scores '
        'are those that the papers published. The licence is that of the repository with the '
        "authors' weights."
    )
    parser.add_argument(
        'patterns',
        nargs='*',
        default=['*'],
        metavar='PATTERN',
        help="of names, such as 'pola*', or a part of a name; default: all models",
    )
    parser.add_argument('--task', choices=TASKS, help='models of this task alone')
    parser.add_argument('--json', action='store_true', help='the list as JSON')
    parser.add_argument(
        '--weights',
        action='store_true',
        help='the released weights instead: each NAME of mmlaplace://NAME, its backbone, its place',
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the list. The exit status is 1 if a pattern matches no model."""
    if args.weights:
        return show_weights(args)
    for pattern in args.patterns:
        if not list_models(pattern, args.task):
            kind = f'{args.task} model' if args.task else 'model'
            near = ', '.join(near_names(pattern, list_models(task=args.task)))
            sys.stderr.write(f'no {kind} matches {pattern!r}; similar names are {near}\n')
            return 1
    rows = [entry(model) for model in find_models(args.patterns, args.task)]
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + '\n')
    else:
        show(rows)
        if args.patterns == ['*']:
            sys.stderr.write(f'{len(rows)} models; a part of a name or --task shows fewer\n')
    return 0


def show_weights(args: argparse.Namespace) -> int:
    """Print the released weights. The exit status is 1 if a pattern matches none, or 2."""
    if args.task or args.json:
        sys.stderr.write('--weights prints no models; leave out --task and --json\n')
        return 2
    for pattern in args.patterns:
        if not list_published([pattern]):
            near = ', '.join(near_names(pattern, [*map(spelled, PUBLISHED), *DENSE]))
            sys.stderr.write(f'no released weights match {pattern!r}; similar names are {near}\n')
            return 1
    sys.stdout.write(list_published(args.patterns) + '\n')
    return 0


def list_published(patterns: Sequence[str] = ('*',)) -> str:
    """The published models by name, with the backbones or configs that they fit, and the places.

    Args:
        patterns: As in :func:`mmlaplace.list_models`, with ``_`` or ``-``. Default: all.
    """
    wanted = [pattern.replace('-', '_') for pattern in patterns]
    fits = {name: describe(name).partition(', ')[2] for name in PUBLISHED}
    dense = {name: f'config {model.config or name}' for name, model in DENSE.items()}
    lines = []
    for known, models in ((fits, PUBLISHED), (dense, DENSE)):
        names = [name for name in known if matches(name.replace('-', '_'), wanted)]
        width = max(map(len, names), default=0)
        lines += [
            f'{spelled(name):{width}}  {known[name]}  {models[name].place}  '
            f'licence {models[name].licence or "not known"}'
            for name in names
        ]
    return '\n'.join(lines)


def entry(model: ModelInfo) -> Dict[str, Any]:
    """A model as an entry of the JSON list. Counts and scores that are not known are None."""
    published = model.metadata.get('Published', {})
    metrics = TOOLBOXES[model.task].metrics if model.task in TOOLBOXES else ()
    return dict(
        name=model.name,
        task=model.task,
        parameters=model.metadata.get('Parameters'),
        macs=model.metadata.get('MACs'),
        published={metric: published[metric] for metric in metrics if metric in published},
        licence=FAMILIES[model.family].licence or None,
        config=str(model.config.resolve()) if model.config else None,
    )


def show(rows: list) -> None:
    """Print the entries as a table, each on one line of any length."""
    table = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify='right' if column.endswith(')') else 'left')
    for row in rows:
        parameters, macs = row['parameters'], row['macs']
        scores = ', '.join(f'{metric} {score}' for metric, score in row['published'].items())
        scores = scores.replace('Top 1 Accuracy', 'top-1')
        table.add_row(
            row['name'],
            row['task'],
            '–' if parameters is None else f'{parameters / 1e6:.2f}',
            '–' if macs is None else f'{macs / 1e9:.2f}',
            scores or '–',
            row['licence'] or '–',
            path_from_here(row['config']) if row['config'] else '–',
        )
    Console(width=1000, highlight=False).print(table)


def path_from_here(path: str) -> str:
    """A path relative to the working directory if it is in it, otherwise as it is."""
    return os.path.relpath(path) if Path.cwd() in Path(path).parents else path
