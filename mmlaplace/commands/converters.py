"""The command line of the tools that convert the authors' checkpoints."""

import re
import sys
from argparse import Namespace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from torch import Tensor

from ..checkpoints import PUBLISHED, Converted, NameTable, UnsafeCheckpointError
from ..checkpoints import write_weights as write
from ..checkpoints.dense import DENSE, dataset_meta_of, kind_of
from ..checkpoints.fit import check_finite
from ..checkpoints.loading import read_weights
from ..checkpoints.names import plain_names
from ..checkpoints.published import (
    are_own,
    by_file_name,
    describe,
    fitting,
    recognise,
    unfit,
)
from ..checkpoints.released import is_released, released_name, released_place
from .command_line import ToolParser, positive
from .dense_models import config_path, convert_dense
from .model_list import path_from_here


def parser_for(doc: Optional[str]) -> ToolParser:
    """A parser with the arguments that all converters have. ``doc`` is the tool's docstring."""
    parser = ToolParser(doc)
    parser.add_argument(
        'source',
        help="the authors' checkpoint: a path, an address, hf://OWNER/NAME, timm://NAME "
        'or mmlaplace://NAME',
    )
    parser.add_argument(
        '--key',
        help="where in the file the weights lie, such as 'model_ema'; default: the first found of "
        'state_dict, model, module, state_dict_ema, model_ema, ema_state_dict and ema, but of SOFT '
        'and CSWin the averaged weights, which their authors evaluate',
    )
    parser.add_argument(
        '--model',
        help='one of convert.py --list; default: found by names and shapes, and if several fit, by '
        'the name of the file',
    )
    parser.add_argument(
        '--image-size',
        nargs=2,
        type=positive,
        default=(1, 1),
        metavar=('H', 'W'),
        help="the training images' size, if they were not square",
    )
    return parser


def near_models(name: str) -> List[str]:
    """Names of published models that are like a name."""
    known = [*PUBLISHED, *DENSE]
    return get_close_matches(name, known, cutoff=0.4) or known


def convert(
    tensors: Mapping[str, Tensor], model: Optional[str], image_size: Tuple[int, int] = (1, 1)
) -> Tuple[Converted, List[str]]:
    """Convert a classifier, detector or segmentor, and check that it fits a published model.

    Args:
        tensors: The authors' tensors.
        model: A name in ``PUBLISHED`` or ``DENSE``. None finds the models that it fits.
        image_size: Height and width of the training images. Default: (1, 1).

    Returns:
        The converted weights, and the models that they fit, of which there may be several.

    Raises:
        ValueError: If the names are of no published model, a tensor has no place, or the weights
            fit another model or none. The message names the tensors, and the model that fits.
        ImportError: If the toolbox of a detector or segmentor is not installed.
    """
    if model in DENSE or kind_of(tensors) not in ('', 'classifier'):
        return convert_dense(tensors, model, image_size)
    table: Optional[NameTable] = recognise(tensors)
    if table is None and are_own(tensors):
        raise ValueError(
            'its names are those of mmlaplace already, so there is nothing to convert; load it as '
            'it is'
        )
    if table is None:
        raise ValueError(
            f'its names are {list(tensors)[:3]} …, those of no published model; see --list'
        )
    converted = table.convert(tensors, image_size)
    fit = fitting(converted.weights)
    if model is not None and unfit(model, converted.weights):
        other = f'; it fits {" or ".join(map(describe, fit))}' if fit else ''
        reason = unfit(model, converted.weights)
        raise ValueError(f'it does not fit {describe(model)}: {reason}{other}')
    return converted, [model] if model is not None else fit


def run(parser: ToolParser, args: Namespace, out: Optional[Path] = None) -> None:
    """Read the authors' checkpoint, convert it, print the names of all tensors, and write it.

    Args:
        parser: The parser of :func:`parser_for`, for errors.
        args: The arguments that it parsed.
        out: The file to write. Default: ``MODEL.pth`` in the current folder.
    """
    from rich.console import Console
    from rich.table import Table

    model: Optional[str] = args.model
    if model is not None and model not in PUBLISHED and model not in DENSE:
        near = ', '.join(near_models(model))
        parser.error(f'there is no published model {model!r}; similar names are {near}; see --list')
    sys.stderr.write(f'reading and converting {args.source} …\n')  # a large file takes a while
    try:
        if is_released(args.source):
            model = model or released_name(args.source)
            args.source = released_place(args.source)
        read = read_weights(args.source, key=args.key)
        tensors = read.tensors
        plain = plain_names(tensors)
        tensors = {k.removeprefix('module.'): tensors[raw] for k, raw in plain.items()}
        converted, models = convert(tensors, model, tuple(args.image_size))
        check_finite(converted.weights)
        dense = kind_of(converted.weights) not in ('', 'classifier')
        models = by_file_name(models, args.source, DENSE if dense else PUBLISHED)
        if len(models) > 1 and not dense:
            raise ValueError(
                f'it fits {" or ".join(map(describe, models))} alike, and its name does not tell '
                'which; choose by --model'
            )
        if out is None and not models:
            raise ValueError('it has the size of no published model; give a file by --out')
        out = out or Path(f'{models[0]}.pth')
        if out.is_dir():
            raise ValueError(f'{out} is a folder; give a file by --out')
        if out.exists() and not args.force:
            raise ValueError(f'{out} is there already; --force replaces it')
        meta: Dict[str, Any] = dict(converted_from=args.source, model=models[0] if models else '')
        if dense:  # the toolboxes' inferencers read it
            meta['dataset_meta'] = dataset_meta_of(models[0], read.dataset_meta)
        write(out, converted.weights, meta)
    except (ValueError, OSError, ImportError, UnsafeCheckpointError) as error:
        message = str(error)
        parser.error(message if args.source in message else f'{args.source}: {message}')
    table = Table("the authors' name", 'name here', 'shape')
    for name, target, shape in converted.report:
        table.add_row(name, target, ' x '.join(map(str, shape)) or 'scalar')
    console = Console()
    console.print(table)
    depths: Dict[int, int] = {}
    for name in converted.weights:
        if found := re.match(r'backbone\.stages\.(\d+)\.blocks\.(\d+)\.', name):
            depths[int(found[1])] = max(depths.get(int(found[1]), 0), int(found[2]) + 1)
    dropped = sum(target == 'dropped' for _, target, _ in converted.report)
    console.print(
        f'{len(converted.report)} tensors of the file, {dropped} of them dropped, became '
        f'{len(converted.weights)}. Depths: {tuple(depths.values())}. Written to {out}',
        markup=False,  # a path may have brackets
    )
    if read.others:
        others = ', '.join(read.others)
        console.print(
            f'These are the weights of {read.key!r}. The file also has {others}; --key chooses.',
            markup=False,
        )
    if dense:
        configs = list(dict.fromkeys(DENSE[name].config or name for name in models))
        same = ', whose networks are the same' if configs[1:] else ''
        console.print(f'It fits the config {" or ".join(configs)}{same}.', markup=False)
        line = f'python tools/test.py {path_from_here(str(config_path(configs[0])))} {out}'
        console.print(f'Next: {line}', markup=False, soft_wrap=True)
        return
    fits = describe(models[0]) if models else 'a model of another size than those of --list'
    console.print(f'It fits {fits}.', markup=False)
    option = f"init_cfg=dict(type='Pretrained', checkpoint={str(out)!r})"
    console.print(f'Next, in the backbone of a config: {option}', markup=False, soft_wrap=True)
