"""The tables of models: docs/model_zoo.md, docs/model_zoo.csv and the READMEs.

They come from the metafiles, and from logs of what was measured and proven. A README has its tables
between two comments, the first with a pattern of paths in configs/:
  <!-- models: classification/soft/softpp-* -->
  <!-- end of models -->
docs/model_zoo.csv has all models, and docs/model_zoo.md those of a medium size, one of each family.
"""

import csv
import json
import os
import re
import sys
from fnmatch import fnmatch
from functools import cache, partial
from io import StringIO
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Sequence, Tuple

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.checkpoints.dense import DENSE
from mmlaplace.model_zoo import ModelInfo, files_root, read_models
from mmlaplace.models import FAMILIES
from mmlaplace.toolboxes import TOOLBOXES
from mmlaplace.writing import markdown_table

from .files import ROOT, Files
from .goldens import manifests

PAGE, DATA = ROOT / 'docs/model_zoo.md', ROOT / 'docs/model_zoo.csv'
WEIGHTS = ROOT / 'docs/released_weights.md'
SPEEDS = ROOT / 'docs/logs/model_zoo_cpu.json'
PROOFS = ROOT / 'docs/logs/families.json'
VERIFIED = ROOT / 'docs/logs/verified'
DRY_RUNS = ROOT / 'docs/logs/dry_run.json'
# The paper's widths and depths were not at hand, so a published score is that of other models.
FITTED = 'laplacianformer'
MARK = '†'
FOOTNOTE = (
    f"{MARK} The score is that of the authors' model. The paper's widths and depths were not at "
    'hand, so the sizes here are fitted to its published parameters and MACs.'
)
MEDIUM = (12e6, 30e6)  # parameters of the models on the page, with Swin-T and ResNet-50 among them
# By the word in a config's name; of several words the first counts.
HEADS = {
    'retinanet': 'RetinaNet',
    'mask-rcnn': 'Mask R-CNN',
    'cascade-mask-rcnn': 'Cascade Mask R-CNN',
    'ssdlite': 'SSDLite',
    'fpn': 'Semantic FPN',
    'upernet': 'UPerNet',
    'lightham': 'LightHam',
    'seghead': 'SegHead',
    'deeplabv3': 'DeepLabv3',
    'pspnet': 'PSPNet',
}
DETECTORS = ('RetinaNet, 1x', 'Mask R-CNN, 1x', 'Mask R-CNN, 3x', 'Cascade Mask R-CNN, 3x')
SEGMENTORS = ('Semantic FPN', 'UPerNet')
COMPARED = ('coco', 'ade20k')  # data sets of these tables


@cache
def read(log: Path) -> Any:
    """The content of a log."""
    return json.loads(log.read_text())


def place_of(released: Any) -> str:
    """The address of the authors' weights, or of their page, or nothing."""
    return released and (released.weights or released.page) or ''


def weights(model: ModelInfo) -> str:
    """The name of the authors' weights, with a link to them or to their page, or nothing."""
    name = model.metadata.get('Published as', '')
    published = PUBLISHED.get(name)
    if not place_of(published):
        return published and name or ''
    link = f'[{name}]' if published.weights else f'{name}, on [a page]'
    return f'{link}({place_of(published)})'


def parameters_and_macs(model: ModelInfo) -> Dict[str, str]:
    """Parameters and MACs by column, as far as they are counted."""
    counted, published = model.metadata, model.metadata['Published']
    # Some papers count the parameters of layers alone, or the products of the kernels too.
    columns = {
        'params': (counted, 'Parameters', 'M', '.2f'),
        'of layers': (counted, 'Parameters of layers', 'M', '.2f'),
        'params, published': (published, 'Parameters', 'M', 'g'),
        'MACs': (counted, 'MACs', 'G', '.2f'),
        'with kernels': (counted, 'MACs with kernels', 'G', '.2f'),
        'MACs, published': (published, 'MACs', 'G', ''),
    }
    shown = ('params', 'params, published', 'MACs', 'MACs, published')
    return {
        title: amount(*column)
        for title, column in columns.items()
        if 'Parameters' in counted and (title in shown or column[1] in counted)
    }


def link(model: ModelInfo, folder: Path, text: str = '') -> str:
    """The name of a config, or another text, with a link from a file in this folder."""
    config = ROOT / model.config.relative_to(files_root())
    return f'[{text or model.name}]({os.path.relpath(config, folder)})'


def amount(figures: dict, name: str, unit: str, digits: str) -> str:
    """A count in millions or billions."""
    size = {'M': 1e6, 'G': 1e9}[unit]
    return f'{figures[name] / size:{digits}} {unit}' if name in figures else '–'


def score(model: ModelInfo, name: str) -> str:
    """A published score, – where there is none."""
    value = model.metadata['Published'].get(name)
    if value is None:
        return '–'
    return f'{value} {MARK}' if model.family == FITTED else str(value)


def scores(model: ModelInfo, folder: Path) -> Dict[str, str]:
    """The published and the reproduced figures, these with links to their log."""
    run, row = model.metadata.get('Reproduced'), {}
    for name in metrics(model):
        title = 'top-1' if name == 'Top 1 Accuracy' else name
        row[f'{title}, published'] = score(model, name)
        if run:
            log = os.path.relpath(ROOT / run['Log'], folder)
            row[f'{title}, reproduced'] = f'[{run[name]}]({log})'
    return row


def metrics(model: ModelInfo) -> List[str]:
    """The scores of a model, as the metafiles name them. RetinaNet has no masks."""
    names = TOOLBOXES[model.task].metrics
    return [name for name in names if name != 'mask AP' or 'mask-rcnn' in model.name]


def with_footnote(table: str) -> str:
    """A table, and after it the footnote if one of its cells has the mark."""
    return f'{table}\n\n{FOOTNOTE}' if MARK in table else table


def table(models: List[ModelInfo], folder: Path, pattern: str) -> str:
    """The models whose path in configs/ matches, for a README in this folder."""
    rows = []
    for model in models:
        if fnmatch(f'{model.task}/{model.family}/{model.name}', pattern):
            row = dict(config=link(model, folder), **parameters_and_macs(model))
            row.update(scores(model, folder))
            place = place_of(DENSE.get(model.name))
            more = {'weights': weights(model), 'whole model': f'[file]({place})' if place else ''}
            rows.append({**row, **{title: cell for title, cell in more.items() if cell}})
    if not rows:
        sys.exit(f'no model of the metafiles matches {pattern!r}')
    header = list(dict.fromkeys(title for row in rows for title in row))
    cells = [[row.get(title, '–') for title in header] for row in rows]
    return with_footnote(markdown_table(header, cells))


def speed(model: ModelInfo) -> str:
    """Measured images a second, empty if it was not measured."""
    measured = read(SPEEDS)['models'].get(model.name)
    return f'{measured["images per second"]:.1f}' if measured else ''


def pixels(model: ModelInfo) -> str:
    """The size of the images at which a model is tested."""
    if model.task == 'detection':
        return '1333x800'
    found = re.search(r'(\d+)px|-\d+x(\d+)$', model.name)
    return found[1] or found[2] if found else '224'


def head(model: ModelInfo) -> str:
    """The head of a detector, with its schedule of 12 or 36 epochs, or of a segmentor."""
    if model.task == 'classification':
        return ''
    name = next(HEADS[word] for word in model.name.split('_') if word in HEADS)
    schedule = re.search(r'[_-]([13]x)_', model.name)
    return f'{name}, {schedule[1]}' if schedule else name


def first_score(model: ModelInfo) -> float:
    """The published score that counts most, 0 where there is none."""
    return model.metadata['Published'].get(metrics(model)[0], 0)


def checked(model: ModelInfo) -> str:
    """How far the conversion of the authors' weights is tested."""
    name = model.metadata.get('Published as')
    if name in read(PROOFS).get(model.family, {}).get('outputs', ()):
        return 'outputs'
    return 'shapes' if name in manifests() else ''


def data_row(model: ModelInfo) -> Dict[str, object]:
    """A row of the data file."""
    said = model.metadata
    metric, *further = metrics(model)
    found = said['Published']
    fitted = model.family == FITTED and metric in found
    coco_or_imagenet = {'classification': 'ImageNet-1k', 'detection': 'COCO'}.get(model.task)
    return {
        'name': model.name,
        'task': model.task,
        'family': model.family,
        'data': coco_or_imagenet or said['Training Data'],
        'head': head(model),
        'published': found.get(metric, ''),
        'metric': metric.replace('Top 1 Accuracy', 'top-1'),
        'mask AP': found.get('mask AP', '') if further else '',
        'params (M)': f'{said["Parameters"] / 1e6:.1f}' if 'Parameters' in said else '',
        'MACs (G)': f'{said["MACs"] / 1e9:.1f}' if 'MACs' in said else '',
        'pixels': pixels(model),
        'images/s': speed(model),
        'weights': place_of(PUBLISHED.get(said.get('Published as', ''))),
        'whole model': place_of(DENSE.get(model.name)),
        'checked': checked(model),
        'config': model.config.relative_to(files_root()).as_posix(),
        'note': "sizes are fitted, the score is the authors'" if fitted else '',
    }


def classifiers(models: List[ModelInfo]) -> str:
    """The medium classifier with the best published top-1 of each family, the best first."""

    def rank(model: ModelInfo) -> Tuple[bool, float]:
        return pixels(model) == '224', first_score(model)  # which MobileViTv2 does not have

    best: Dict[str, ModelInfo] = {}
    sizes: Dict[str, List[float]] = {}
    for model in models:
        if model.task != 'classification':
            continue
        params = model.metadata['Parameters']
        sizes.setdefault(model.family, []).append(params / 1e6)
        if MEDIUM[0] <= params <= MEDIUM[1] and int(pixels(model)) <= 256:
            best[model.family] = max(best.get(model.family, model), model, key=rank)
    rows = []
    for family, model in sorted(best.items(), key=lambda item: -first_score(item[1])):
        rows.append(
            [
                link(model, PAGE.parent),
                score(model, 'Top 1 Accuracy'),
                amount(model.metadata, 'Parameters', 'M', '.1f'),
                amount(model.metadata, 'MACs', 'G', '.1f'),
                speed(model) or '–',
                weights(model) or 'none',
                checked(model) or '–',
                f'{min(sizes[family]):.0f}–{max(sizes[family]):.0f} M',
            ]
        )
    header = ['config', 'top-1', 'params', 'MACs', 'images/s', 'weights', 'checked', 'sizes']
    return with_footnote(markdown_table(header, rows))


def dense(models: List[ModelInfo], task: str, heads: Sequence[str]) -> str:
    """The published scores of medium backbones below each head, with links to the configs."""
    params = {
        model.name.partition('_')[0]: model.metadata['Parameters']
        for model in models
        if model.task == 'classification'
    }
    best: Dict[str, Dict[str, ModelInfo]] = {}  # by backbone and head
    for model in models:
        name = next((part for part in model.name.split('_')[:2] if part in params), '')
        medium = MEDIUM[0] <= params.get(name, 0) <= MEDIUM[1]
        data = model.name.rpartition('_')[2].partition('-')[0]
        if model.task == task and medium and data in COMPARED and head(model) in heads:
            row = best.setdefault(name, {})
            row[head(model)] = max(row.get(head(model), model), model, key=first_score)
    rows = []
    for name, row in sorted(
        best.items(), key=lambda item: -max(map(first_score, item[1].values()))
    ):
        cells = [score_link(row[each]) if each in row else '–' for each in heads]
        rows.append([name, f'{params[name] / 1e6:.1f} M', *cells])
    return with_footnote(markdown_table(['backbone', 'params', *heads], rows))


def score_link(model: ModelInfo) -> str:
    """The published scores with a link to the config, or the link alone."""
    found = [score(model, metric) for metric in metrics(model)]
    text = 'config' if set(found) == {'–'} else ' / '.join(found)
    return link(model, PAGE.parent, text)


def whole_models(models: List[ModelInfo]) -> str:
    """Where the detectors and segmentors are that the authors of each family released."""
    rows = []
    for family, each in FAMILIES.items():
        configs = [m for m in models if m.family == family and m.task != 'classification']
        if configs:
            found = each.dense.values()
            kinds = [(bool(one.weights), bool(one.page)) for one in found]
            files, pages = map(sum, zip(*kinds)) if kinds else (0, 0)
            counts = (len(configs), files, pages, kinds.count((False, False)))
            licences = ', '.join(sorted({one.licence or each.licence for one in found}))
            cells = [str(count or '–') for count in counts]
            rows.append([family, *cells, licences or each.licence or '–'])
    header = ['family', 'configs', 'files', 'on a page', 'empty link', 'licence']
    return markdown_table(header, rows)


def licences() -> str:
    """What each family's file says of its licences."""
    rows = []
    for family, each in FAMILIES.items():
        own = sorted({one.licence for one in each.published.values() if one.licence})
        others = f'; {", ".join(own)} of some models' if own else ''
        code = {'none': '**none**', '': 'not known here'}.get(each.licence, each.licence)
        rows.append([family, code + others, each.weights_licence or 'not stated apart'])
    return markdown_table(['family', 'of the repository', 'of the weights'], rows)


def verified() -> str:
    """The files whose score somebody measured, by ``python -m mmlaplace verify``."""
    header = ['file', 'data', 'published', 'measured', 'verdict', 'date']
    rows = []
    for log in sorted(VERIFIED.glob('*.json')):
        found = read(log)
        scores = [
            ', '.join(f'{name} {value}' for name, value in found[key].items())
            for key in ('published', 'measured')
        ]
        link = f'[{found["name"]}]({os.path.relpath(log, WEIGHTS.parent)})'
        rows.append([link, found['data'], *scores, found['verdict'], found['date']])
    return markdown_table(header, rows or [['none yet', *['–'] * (len(header) - 1)]])


def proofs() -> str:
    """What is proven of the weights of each family."""
    ran = [row['config'].split('/') for row in read(DRY_RUNS)]
    rows = []
    for family, found in read(PROOFS).items():
        golden = list(found['golden'].values())
        gradients = [errors[1] for errors in golden if len(errors) > 1]
        rows.append(
            [
                family,
                str(found['sizes']),
                str(found['whole'] or '–'),
                worst(e[0] for e in golden),
                worst(gradients),
                worst(found['timm'].values()),
                str(sum(config[1] == family for config in ran) or '–'),
            ]
        )
    header = ['family', 'sizes', 'whole', 'logits', 'gradient', 'timm', 'dry runs']
    return markdown_table(header, rows)


def worst(errors: Iterable[float]) -> str:
    """The largest of some errors."""
    largest = max(errors, default=None)
    return '–' if largest is None else f'{largest:.0e}'


def update(files: Files) -> None:
    models = read_models()
    for readme in (ROOT / 'README.md', *sorted(ROOT.glob('configs/*/*/README.md'))):
        files.tables(readme, 'models', partial(table, models, readme.parent))
    tables: Dict[str, Callable[[], str]] = {
        'classifiers': partial(classifiers, models),
        'detectors': partial(dense, models, 'detection', DETECTORS),
        'segmentors': partial(dense, models, 'segmentation', SEGMENTORS),
        'proven': proofs,
        'whole-models': partial(whole_models, models),
        'licences': licences,
        'verified': verified,
    }
    for page in (PAGE, WEIGHTS):
        files.tables(page, 'table', lambda name: tables[name]())
    rows, text = list(map(data_row, models)), StringIO()
    writer = csv.DictWriter(text, rows[0], lineterminator='\n')
    writer.writeheader()
    writer.writerows(rows)
    files.write(DATA, text.getvalue())
