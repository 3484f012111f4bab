"""Read the papers' tables from studies/tables: one YAML file for each table, in printed order."""

import copy
import logging
import os
import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mmengine.config import Config

from mmlaplace.model_zoo import files_root, read_yaml
from mmlaplace.models.known_options import did_you_mean
from mmlaplace.toolboxes import toolbox_folder

TABLES = Path(__file__).resolve().parents[1] / 'tables'
# Rows of the paper's methods, of the methods it compares with, and of options that no table has.
KINDS = ('own', 'baseline', 'option')
# Weights of another row can start the backbone or the whole model, or are tested without training.
USES = ('backbone', 'start', 'test')
SCALES = ('full', 'mini')
CHECKPOINTS = ('last', 'best')
# Folders of validation images of each task, for figures.
IMAGES = {
    'full': dict(
        classification='data/imagenet/val',
        detection='data/coco/val2017',
        segmentation='data/ade/ADEChallengeData2016/images/validation',
    ),
    'mini': dict(
        classification='data/mini/classification/val',
        detection='data/mini/detection/val',
        segmentation='data/mini/segmentation/images/validation',
    ),
}


@dataclass(frozen=True)
class Metric:
    """A column of a table.

    Attributes:
        unit: Unit of the published value.
        log: For a score, its key in the log of a test. Otherwise None.
        factor: Factor from the logged or measured value to the unit.
        measured: For other values, their key in the rows of
            ``tools/analysis_tools/get_flops.py``. Otherwise None.
        on_full: Whether the full-size model is measured even at the mini scale, as for counts.
    """

    unit: str
    log: Optional[str] = None
    factor: float = 1.0
    measured: Optional[str] = None
    on_full: bool = False


def _average_precisions(title: str, prefix: str) -> Dict[str, Metric]:
    suffixes = {'': '', '50': '_50', '75': '_75', ' small': '_s', ' medium': '_m', ' large': '_l'}
    return {
        f'{title}{name}': Metric('%', f'coco/{prefix}_mAP{suffix}', 100.0)
        for name, suffix in suffixes.items()
    }


METRICS: Dict[str, Metric] = {
    'top-1': Metric('%', 'accuracy/top1'),
    **_average_precisions('box AP', 'bbox'),
    **_average_precisions('mask AP', 'segm'),
    'mIoU': Metric('%', 'mIoU'),
    'parameters': Metric('M', factor=1e-6, measured='parameters', on_full=True),
    'MACs': Metric('G', factor=1e-9, measured='weight_macs', on_full=True),
    'MACs with kernels': Metric('G', factor=1e-9, measured='macs', on_full=True),
    'widths': Metric('', measured='embed_dims', on_full=True),
    'depths': Metric('', measured='depths', on_full=True),
    'heads': Metric('', measured='num_heads', on_full=True),
    'training memory': Metric('GB', factor=1e-9, measured='training_bytes'),
    'training speed': Metric('images/s', measured='training_samples_per_second'),
    'test speed': Metric('images/s', measured='test_samples_per_second'),
    # PolaFormer's Table 6 does not state units, nor whether the figures are for training.
    'throughput': Metric('', measured='training_samples_per_second'),
    'peak memory': Metric('', factor=2.0**-20, measured='training_bytes'),
}


class TableError(ValueError):
    """A table's file is wrong, or there is no such table or row."""


@dataclass(frozen=True)
class Spec:
    """A config with changed options.

    Attributes:
        config: A path in this project, or ``toolbox::path`` for a config of a toolbox. Before it,
            environment variables that the config reads, as in a shell: ``ATTENTION=pola path``.
        options: Values by dotted keys, as for ``--cfg-options``. They are merged in this order.
    """

    config: str
    options: Mapping[str, Any]

    @property
    def variables(self) -> Dict[str, str]:
        """The environment variables that the config reads."""
        words = self.config.split()[:-1]
        return {name: value for name, _, value in (word.partition('=') for word in words)}

    def path(self) -> Path:
        """Path of the config.

        Raises:
            TableError: If there is no such file.
            ImportError: If the toolbox of the config is not installed.
        """
        scope, _, inner = self.config.split()[-1].rpartition('::')
        if scope:
            package = toolbox_folder(scope)
            places = [package / '.mim/configs' / inner, package.parent / 'configs' / inner]
        else:
            places = [files_root() / inner]
        for place in places:
            if place.is_file():
                return place
        raise TableError(f'no config {self.config!r}; there is no {" or ".join(map(str, places))}')

    def load(self) -> Config:
        """Load the config and merge the options into it."""
        cfg = copy.deepcopy(_parsed(self.path(), tuple(self.variables.items())))
        merge(cfg, self.options)
        return cfg


def merge(cfg: Config, options: Mapping[str, Any]) -> None:
    """Merge options into a config one by one, so that a later one can change an earlier one."""
    for key, value in options.items():
        cfg.merge_from_dict({key: copy.deepcopy(value)})


@cache
def _parsed(path: Path, variables: Tuple[Tuple[str, str], ...]) -> Config:
    """Read a config with these environment variables, about which mmengine logs nothing."""
    before = {name: os.environ.get(name) for name, _ in variables}
    os.environ.update(variables)
    logging.disable(logging.INFO)
    try:
        return Config.fromfile(path)
    finally:
        logging.disable(logging.NOTSET)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass(frozen=True)
class Weights:
    """Weights that a run takes from another row.

    Attributes:
        row: The other row, as ``table/row``.
        use: ``'backbone'`` starts the backbone from the weights, and ``'start'`` the whole model.
            ``'test'`` tests the weights without training.
    """

    row: str
    use: str


@dataclass(frozen=True)
class Run:
    """A training with its test, or a drawing, for a row. Most rows have one run.

    Attributes:
        name: Name of the run in its row. It is ``''`` if the row has one run.
        published: Published values by metric, in the metric's unit, or None if there is no value.
            Text must be equal.
        full: The config of the row, or None if a tool draws it.
        mini: The config of its small copy for data/mini, or None.
        tool: Path and arguments of the tool of this project that draws it.
        mini_tool: The same for the mini scale.
        weights: Weights of another row, or None.
        image_size: Height and width at which the paper counts MACs. Default: None, the config's.
        checkpoint: The checkpoint to test: ``'last'``, or the ``'best'`` in validation.
    """

    name: str
    published: Mapping[str, Union[float, str, None]]
    full: Optional[Spec] = None
    mini: Optional[Spec] = None
    tool: Tuple[str, ...] = ()
    mini_tool: Tuple[str, ...] = ()
    weights: Optional[Weights] = None
    image_size: Optional[Tuple[int, int]] = None
    checkpoint: str = 'last'

    @property
    def trained(self) -> bool:
        """Whether a training or a drawing is needed, and not only measurements."""
        return not self.published or any(METRICS[name].log for name in self.published)

    def spec(self, scale: str) -> Optional[Spec]:
        """The config for a scale, or None."""
        return self.full if scale == 'full' else self.mini

    def drawn_by(self, scale: str) -> Tuple[str, ...]:
        """Path and arguments of the tool for a scale."""
        return self.tool if scale == 'full' else self.mini_tool


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: Name on the command line.
        label: Name in the paper's table.
        kind: ``'own'`` for the paper's method, ``'baseline'`` for a method that it compares with,
            ``'option'`` for an option of the paper or the authors' code that no table has.
        line: Number of the row in the printed table, from 1.
        runs: The runs of the row.
        averages: Published means over the runs, by metric.
        waits_for: The missing part of this project without which the row cannot be produced.
        why_not: The reason why the row can never be produced.
        note: Differences from the paper, and unknown details.
    """

    name: str
    label: str
    kind: str
    line: int
    runs: Tuple[Run, ...]
    averages: Mapping[str, float]
    waits_for: str = ''
    why_not: str = ''
    note: str = ''

    @property
    def covered(self) -> bool:
        """Whether a command produces the row."""
        return not self.reason

    @property
    def reason(self) -> str:
        """The reason why no command produces the row, or ``''``."""
        return self.why_not or (f'waits for {self.waits_for}' if self.waits_for else '')


@dataclass(frozen=True)
class Table:
    """A table of a paper.

    Attributes:
        name: Name of the file without ``.yml``.
        title: Title of the table.
        paper: Name and identifier of the paper.
        place: Number of the table, and its page or section.
        rows: The rows in printed order.
        note: A note on all rows.
    """

    name: str
    title: str
    paper: str
    place: str
    rows: Tuple[Row, ...]
    note: str = ''

    def row(self, name: str) -> Row:
        """The row of this name.

        Raises:
            TableError: If there is no such row. The message lists all rows.
        """
        for row in self.rows:
            if row.name == name:
                return row
        names = [row.name for row in self.rows]
        raise TableError(
            f'{self.name} has no row {name!r}{did_you_mean(name, names)}; its rows are: '
            f'{", ".join(names)}'
        )


def table_files() -> Dict[str, Path]:
    """The files of all tables by name, sorted by paper and number."""
    files = {path.stem: path for path in TABLES.glob('*.yml')}
    number = lambda name: re.sub(r'\d+', lambda n: n[0].zfill(3), name)  # noqa: E731
    return {name: files[name] for name in sorted(files, key=number)}


@cache
def read_table(name: str) -> Table:
    """Read the table of this name.

    Raises:
        TableError: If there is no such table, or its file is wrong.
    """
    files = table_files()
    if name not in files:
        raise TableError(
            f'there is no table {name!r}{did_you_mean(name, files)}; there are: {", ".join(files)}'
        )
    return parse_table(name, read_yaml(files[name]))


def read_tables() -> List[Table]:
    """Read all tables."""
    return [read_table(name) for name in table_files()]


def find_row(name: str) -> Tuple[Table, Row]:
    """The table and the row of a name ``table/row``."""
    table, _, row = name.partition('/')
    found = read_table(table)
    return found, found.row(row)


TABLE_KEYS = ('title', 'paper', 'place', 'rows', 'note', 'checkpoint', 'shared')
RUN_KEYS = ('name', 'config', 'options', 'mini', 'tool', 'weights', 'image_size', 'published')
ROW_KEYS = ('label', 'kind', 'runs', 'averages', 'waits_for', 'why_not', 'note')


def parse_table(name: str, content: Mapping[str, Any]) -> Table:
    """Make a table from the content of its file. The key ``shared`` is only for YAML anchors.

    Raises:
        TableError: For an unknown or missing key, kind, metric, checkpoint or use of weights, or
            if two rows have the same name.
    """
    _check_keys(name, content, TABLE_KEYS, needed=('title', 'paper', 'place', 'rows'))
    checkpoint = content.get('checkpoint', 'last')
    if checkpoint not in CHECKPOINTS:
        raise TableError(f'{name}: checkpoint must be one of {CHECKPOINTS}, got {checkpoint!r}')
    rows = [_parse_row(name, line, row, checkpoint) for line, row in enumerate(content['rows'], 1)]
    names = [row.name for row in rows]
    twice = sorted({row for row in names if names.count(row) > 1})
    if twice:
        raise TableError(f'{name}: more than one row is named {", ".join(twice)}')
    texts = {key: content.get(key, '') for key in ('title', 'paper', 'place', 'note')}
    return Table(name=name, rows=tuple(rows), **texts)


def _parse_row(table: str, line: int, content: Mapping[str, Any], checkpoint: str) -> Row:
    where = f'{table}, row {content.get("name", line)!r}'
    _check_keys(where, content, (*ROW_KEYS, *RUN_KEYS), needed=('name', 'kind'))
    if content['kind'] not in KINDS:
        raise TableError(f'{where}: kind must be one of {KINDS}, got {content["kind"]!r}')
    reasons = [key for key in ('waits_for', 'why_not') if content.get(key)]
    one = {key: content[key] for key in RUN_KEYS if key in content and key != 'name'}
    if len(reasons) > 1:
        raise TableError(f'{where}: give waits_for or why_not, not both')
    if 'runs' in content and one:
        raise TableError(f'{where}: give runs, or {", ".join(one)} of its one run, not both')
    given = content.get('runs', [dict(one, name='')])
    runs = tuple(_parse_run(table, where, run, checkpoint, bool(reasons)) for run in given)
    averages = content.get('averages', {})
    _check_keys(f'{where}, averages', averages, METRICS)
    texts = {key: content.get(key, '') for key in ('waits_for', 'why_not', 'note')}
    return Row(
        name=content['name'],
        label=content.get('label', content['name']),
        kind=content['kind'],
        line=line,
        runs=runs,
        averages=averages,
        **texts,
    )


def _parse_run(
    table: str, where: str, content: Mapping[str, Any], checkpoint: str, excused: bool
) -> Run:
    where = f'{where}, run {content["name"]!r}' if content.get('name') else where
    _check_keys(where, content, RUN_KEYS, needed=('name',))
    published = content.get('published') or {}
    _check_keys(f'{where}, published', published, METRICS)
    if not excused and bool(content.get('config')) == bool(content.get('tool')):
        raise TableError(f'{where}: give exactly one of config, tool, waits_for and why_not')
    specs = {}
    for scale, spec in (('full', content), ('mini', content.get('mini') or {})):
        if scale == 'mini' and spec:
            known = ('tool',) if content.get('tool') else ('config', 'options')
            _check_keys(f'{where}, mini', spec, known, needed=known[:1])
        if spec.get('config'):
            specs[scale] = Spec(spec['config'], spec.get('options') or {})
    weights = content.get('weights')
    if weights is not None:
        names = [field.name for field in fields(Weights)]
        _check_keys(f'{where}, weights', weights, names, needed=names)
        if weights['use'] not in USES:
            raise TableError(f'{where}: use must be one of {USES}, got {weights["use"]!r}')
        row = weights['row']
        weights = Weights(row if '/' in row else f'{table}/{row}', weights['use'])
    size = content.get('image_size')
    tool = tuple(content.get('tool') or ())
    small = (content.get('mini') or {}).get('tool')
    return Run(
        name=content['name'],
        published=published,
        tool=tool,
        mini_tool=tuple(small or tool),
        weights=weights,
        image_size=tuple(size) if size else None,
        checkpoint=checkpoint,
        **specs,
    )


def _check_keys(
    where: str, content: Mapping[str, Any], known: Collection[str], needed: Sequence[str] = ()
) -> None:
    if not isinstance(content, Mapping):
        raise TableError(f'{where}: expected a mapping, got {content!r}')
    unknown = [key for key in content if key not in known]
    missing = [key for key in needed if key not in content]
    if unknown or missing:
        raise TableError(
            f'{where}: unknown keys {unknown}, missing keys {missing}; known are {list(known)}'
        )
