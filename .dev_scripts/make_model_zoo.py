"""Write the tables of models in docs/model_zoo.md and in the READMEs, from the metafiles.

A README has its tables between two comments, the first with a pattern of paths in configs/:
  <!-- models: classification/soft/softpp-* -->
  <!-- end of models -->
docs/model_zoo.md has the tables of all READMEs in configs/.

Examples:
  python .dev_scripts/make_model_zoo.py
  python .dev_scripts/make_model_zoo.py --check   # exit status 1 if a file is not in step
"""

import json
import os
import re
import sys
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Dict, Iterable, List

from marked_tables import markdown_table, with_tables

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.model_zoo import ModelInfo, files_root, read_models
from mmlaplace.toolboxes import TOOLBOXES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs/model_zoo.md'
SPEEDS = ROOT / 'docs/logs/model_zoo_cpu.json'
PROOFS = ROOT / 'docs/logs/families.json'
DRY_RUNS = ROOT / 'docs/logs/dry_run.json'
HEADING_OR_MARK = re.compile(r'^#+ (.+)|<!-- models: (\S+) -->', re.MULTILINE)


def table_row(model: ModelInfo, folder: Path) -> Dict[str, str]:
    """A row of a table in a file of this folder, by its column titles."""
    costs = parameters_and_macs(model) if 'Parameters' in model.metadata else {}
    return {'config': link(model, folder), **costs, **scores(model, folder), **weights(model)}


def weights(model: ModelInfo) -> Dict[str, str]:
    """The name of the authors' weights, with a link to them or to their page."""
    if 'Published as' not in model.metadata:
        return {}
    name = model.metadata['Published as']
    published = PUBLISHED[name]
    if published.weights:
        return {'weights': f'[{name}]({published.weights})'}
    return {'weights': f'{name}, on [a page]({published.page})' if published.page else name}


def parameters_and_macs(model: ModelInfo) -> Dict[str, str]:
    """Parameters and MACs."""
    ours, theirs = model.metadata, model.metadata['Published']
    row = {'params': amount(ours, 'Parameters', 'M', '.2f')}
    # Some papers count the parameters of layers alone, or the products of the kernels too.
    if 'Parameters of layers' in ours:
        row['of layers'] = amount(ours, 'Parameters of layers', 'M', '.2f')
    row['params, published'] = amount(theirs, 'Parameters', 'M', 'g')
    row['MACs'] = amount(ours, 'MACs', 'G', '.2f')
    if 'MACs with kernels' in ours:
        row['with kernels'] = amount(ours, 'MACs with kernels', 'G', '.2f')
    row['MACs, published'] = amount(theirs, 'MACs', 'G', '')
    return row


def link(model: ModelInfo, folder: Path) -> str:
    """The name of a config, with a link from a file in this folder."""
    config = ROOT / model.config.relative_to(files_root())
    return f'[{model.name}]({os.path.relpath(config, folder)})'


def amount(figures: dict, name: str, unit: str, digits: str) -> str:
    """A count in millions or billions."""
    size = {'M': 1e6, 'G': 1e9}[unit]
    return f'{figures[name] / size:{digits}} {unit}' if name in figures else '–'


def scores(model: ModelInfo, folder: Path) -> Dict[str, str]:
    """The published and the reproduced figures, these with links to their log."""
    published, run, row = model.metadata['Published'], model.metadata.get('Reproduced'), {}
    for name in TOOLBOXES[model.task].metrics:
        if name == 'mask AP' and 'mask-rcnn' not in model.name:
            continue  # a detector of boxes alone
        title = 'top-1' if name == 'Top 1 Accuracy' else name
        row[f'{title}, published'] = str(published.get(name, '–'))
        row[f'{title}, reproduced'] = (
            f'[{run[name]}]({os.path.relpath(ROOT / run["Log"], folder)})' if run else 'not run'
        )
    return row


def table(models: List[ModelInfo], folder: Path, pattern: str) -> str:
    """The models whose path in configs/ matches, for a file in this folder."""
    rows = [
        table_row(model, folder)
        for model in models
        if fnmatch(f'{model.task}/{model.family}/{model.name}', pattern)
    ]
    if not rows:
        sys.exit(f'no model of the metafiles matches {pattern!r}')
    header = list(dict.fromkeys(title for row in rows for title in row))
    return markdown_table(header, [[row.get(title, '–') for title in header] for row in rows])


def released(models: List[ModelInfo]) -> str:
    """All classifiers with released weights, the best first."""
    log = json.loads(SPEEDS.read_text()) if SPEEDS.is_file() else {'models': {}}
    found = [
        model
        for model in models
        if model.task == 'classification' and '](' in weights(model).get('weights', '')
    ]
    rows = []
    top1 = {model.name: model.metadata['Published'].get('Top 1 Accuracy', 0) for model in found}
    for model in sorted(found, key=lambda m: -top1[m.name]):
        side = re.search(r'(\d+)px', model.name)
        speed = log['models'].get(model.name)
        rows.append([
            link(model, PAGE.parent), model.family,
            amount(model.metadata, 'Parameters', 'M', '.1f'),
            amount(model.metadata, 'MACs', 'G', '.1f'), side[1] if side else '224',
            str(top1[model.name] or '–'),
            f'{speed["images per second"]:.1f}' if speed else '–', weights(model)['weights'],
        ])  # fmt: skip
    header = ['config', 'family', 'params', 'MACs', 'pixels', 'top-1', 'images/s', 'weights']
    return markdown_table(header, rows)


def proofs() -> str:
    """What is proven of the weights of each family."""
    ran = [row['config'].split('/') for row in json.loads(DRY_RUNS.read_text())]
    rows = []
    for family, found in json.loads(PROOFS.read_text()).items():
        golden = list(found['golden'].values())
        gradients = [errors[1] for errors in golden if len(errors) > 1]
        rows.append([
            family, str(found['sizes']), str(found['whole'] or '–'),
            worst(e[0] for e in golden),
            worst(gradients), worst(found['timm'].values()),
            str(sum(config[1] == family for config in ran) or '–'),
        ])  # fmt: skip
    header = ['family', 'sizes', 'whole', 'logits', 'gradient', 'timm', 'dry runs']
    return markdown_table(header, rows)


def worst(errors: Iterable[float]) -> str:
    """The largest of some errors."""
    largest = max(errors, default=None)
    return '–' if largest is None else f'{largest:.0e}'


def all_models(models: List[ModelInfo]) -> str:
    """All tables of the READMEs in configs/, below the headings they have there."""
    parts = []
    for task in TOOLBOXES:
        parts.append(f'## {task.capitalize()}\n')
        for readme in sorted((ROOT / 'configs' / task).glob('*/README.md')):
            (above, _), *further = HEADING_OR_MARK.findall(readme.read_text())
            parts.append(f'### [{above}]({os.path.relpath(readme, PAGE.parent)})\n')
            for heading, pattern in further:
                if pattern:
                    parts.append(f'{above}:\n\n{table(models, PAGE.parent, pattern)}\n')
                above = heading
    return '\n'.join(parts).strip()


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--check', action='store_true', help='only name the files not in step')
    args = parser.parse_args()
    readmes = [ROOT / 'README.md', *sorted(ROOT.glob('configs/*/*/README.md'))]
    models = read_models()
    wanted = {
        path: with_tables(path.read_text(), 'models', partial(table, models, path.parent))
        for path in readmes
    }
    tables = dict(released=released(models), proven=proofs(), models=all_models(models))
    wanted[PAGE] = with_tables(PAGE.read_text(), 'table', tables.__getitem__)
    stale = [path for path, text in wanted.items() if path.read_text() != text]
    names = ', '.join(str(path.relative_to(ROOT)) for path in stale)
    if args.check and stale:
        sys.exit(
            f'not in step with the metafiles: {names}; run python .dev_scripts/make_model_zoo.py'
        )
    for path in stale:
        path.write_text(wanted[path])
    print(f'wrote {names}' if stale else 'all tables are in step with the metafiles')


if __name__ == '__main__':
    main()
