"""Write docs/model_zoo.md and the tables of models in the READMEs, from the metafiles.

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

from marked_tables import with_tables

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.model_zoo import ModelInfo, files_root, read_models
from mmlaplace.toolboxes import TOOLBOXES

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / 'docs/model_zoo.md'
SPEEDS = ROOT / 'docs/logs/model_zoo_cpu.json'
PROOFS = ROOT / 'docs/logs/families.json'
DRY_RUNS = ROOT / 'docs/logs/dry_run.json'
RELEASED = """\
## Released weights

Classifiers with a link to their authors' weights, the best first. Top-1 is the authors', for the
size of the image in *pixels*. Some were first trained on ImageNet-22k, which their READMEs say.
`convert.py --list` also has distilled weights and other sizes of images, and says which weights are
not released. Of [SOFT](https://github.com/fudan-zvg/SOFT#main-results), the authors link to tiny,
and with SOFT++'s inverse to all sizes but huge. Of
[PolaFormer](https://huggingface.co/ZachMeng/PolaFormer/tree/main), they list PVT tiny and small,
and Swin. Weights of SOFT++ and of PolaFormer on larger PVTs are not released.
"""
PROVEN = """\
## What is proven of each family

`python .dev_scripts/prove_families.py` writes [the log](logs/families.json). *Whole*: sizes whose
checkpoint, by the names and shapes in the authors' code, converts with no tensor missing or left
over. *Logits* and *gradient* are the largest errors of small classifiers with random weights
against the authors' own code, relative to the largest value, and *timm* those against timm. *Dry
runs* are full-size configs that trained for one or two steps and were validated. The released
weights themselves were not at hand.
"""
INTRODUCTION = """\
# Model zoo

All models of the metafiles. `python .dev_scripts/make_model_zoo.py` writes this page and the tables
in the READMEs from them. *Published* are the papers' figures, – where there is none. *Reproduced*
are this project's, linked to their logs. No model was run at full size, so there are no pretrained
weights of our own. *Weights* are the authors'. They
[convert](faq.md#converting-the-authors-checkpoints) as the model that is named, and are not tested
here. The READMEs have the recipes, and [Train it yourself](train_it_yourself.md) the commands.

Classifiers are for ImageNet-1k. Parameters include the head of 1000 classes. Parameters *of layers*
leave out positions and other bare tensors. The published ones of SOFT and PolaFormer fit these.
MACs are those of convolutions and linears. MACs *with kernels* include the products of the
attention, without the Newton iteration of SOFT. The published ones of SOFT fit these.
`python tools/analysis_tools/get_flops.py` counts all of them, and the iteration too. The
LaplacianFormer paper's widths, depths and recipe were not at hand. Its sizes here were chosen to
match the published parameters and MACs, and they train by SOFT's recipe.

What was measured here, on small data: [the scale of the whitened attention](scale.md),
[Laplacian, Gaussian and softmax on the same host](attention_comparison.md),
[what SOFT++ says of norms and PolaFormer of entropy](soft_and_polaformer.md), and
[small detectors and segmentors](dense_prediction.md).
"""
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
    lines = [header, ['---'] * len(header)]
    lines += [[row.get(title, '–') for title in header] for row in rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def markdown(header: List[str], rows: List[List[str]]) -> str:
    """A table in Markdown."""
    lines = [header, ['---'] * len(header), *rows]
    return '\n'.join(f'| {" | ".join(line)} |' for line in lines) + '\n'


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
    machine = log.get('machine')
    header = ['config', 'family', 'params', 'MACs', 'pixels', 'top-1', 'images/s', 'weights']
    measured = (
        f'Images a second are those of the backbone on {machine["threads"]} threads of an '
        f'{machine["CPU"]} with torch {machine["torch"]}, at 224 x 224 pixels and batch 8\n'
        f'([log]({os.path.relpath(SPEEDS, PAGE.parent)})).\n\n'
        '![Top-1 over speed, a line for each family](images/model_zoo_speed.png)\n'
        if machine
        else '`python .dev_scripts/time_model_zoo.py` measures images a second.\n'
    )
    return f'{RELEASED}{measured}\n{markdown(header, rows)}'


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
    return f'{PROVEN}\n{markdown(header, rows)}'


def worst(errors: Iterable[float]) -> str:
    """The largest of some errors."""
    largest = max(errors, default=None)
    return '–' if largest is None else f'{largest:.0e}'


def page(models: List[ModelInfo]) -> str:
    """All tables of the READMEs in configs/, below the headings they have there."""
    parts = [INTRODUCTION, released(models), proofs()]
    for task in TOOLBOXES:
        parts.append(f'## {task.capitalize()}\n')
        for readme in sorted((ROOT / 'configs' / task).glob('*/README.md')):
            (above, _), *further = HEADING_OR_MARK.findall(readme.read_text())
            parts.append(f'### [{above}]({os.path.relpath(readme, PAGE.parent)})\n')
            for heading, pattern in further:
                if pattern:
                    parts.append(f'{above}:\n\n{table(models, PAGE.parent, pattern)}\n')
                above = heading
    return '\n'.join(parts)


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
    wanted[PAGE] = page(models)
    stale = [
        path for path, text in wanted.items() if not path.is_file() or path.read_text() != text
    ]
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
