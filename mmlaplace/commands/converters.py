"""The command line of the tools that convert the authors' checkpoints."""

from argparse import Namespace
from typing import Callable, Dict

from torch import Tensor

from ..checkpoints import Conversion, UnsafeCheckpointError, read_state_dict, write_weights
from ..checkpoints.names import plain_names
from .command_line import ToolParser


def parser_for(doc: str) -> ToolParser:
    """A parser with the arguments that all converters have. ``doc`` is the tool's docstring."""
    parser = ToolParser(doc)
    parser.add_argument(
        'source', help="the authors' checkpoint: a path, an address or hf://OWNER/NAME"
    )
    parser.add_output('out', help='the file to write, one of safetensors if .safetensors ends it')
    parser.add_argument(
        '--key',
        help="where in the file the weights lie, such as 'model_ema'; default: the first found of "
        'state_dict, model, module, state_dict_ema, model_ema and ema_state_dict',
    )
    return parser


def run(
    parser: ToolParser,
    convert: Callable[[Dict[str, Tensor], Namespace], Conversion],
) -> None:
    """Read the authors' checkpoint, convert it, print the names of all tensors, and write it.

    Args:
        parser: The parser of :func:`parser_for`, perhaps with further arguments.
        convert: Function of the authors' state dict and the parsed arguments that returns the
            conversion.
    """
    from rich.console import Console
    from rich.table import Table

    args = parser.parse_args()
    try:
        theirs = read_state_dict(args.source, key=args.key)
        theirs = {k.removeprefix('module.'): theirs[raw] for k, raw in plain_names(theirs).items()}
        conversion = convert(theirs, args)
        ours = conversion.finish()
        write_weights(args.out, ours, dict(converted_from=args.source))
    except (ValueError, FileNotFoundError, ImportError, UnsafeCheckpointError) as error:
        message = str(error)
        parser.error(message if args.source in message else f'{args.source}: {message}')
    table = Table('theirs', 'ours', 'shape')
    for name, target, shape in conversion.report:
        table.add_row(name, target, ' x '.join(map(str, shape)) or 'scalar')
    console = Console()
    console.print(table)
    depths: Dict[int, int] = {}
    for name in ours:
        parts = name.split('.')
        if parts[1:2] == ['stages'] and parts[3] == 'blocks':
            depths[int(parts[2])] = max(depths.get(int(parts[2]), 0), int(parts[4]) + 1)
    dropped = sum(target.startswith('dropped') for _, target, _ in conversion.report)
    console.print(
        f'{len(conversion.report)} tensors of theirs, {dropped} of them dropped, became '
        f'{len(ours)}. Depths: {tuple(depths.values())}. Written to {args.out}',
        markup=False,  # a path may have brackets
    )
