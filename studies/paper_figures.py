"""Draw the papers' figures from computations here, and write their numbers beside the picture.

  softpp-1a     top-1 over parameters: published, and of small copies that were trained (--run)
  softpp-1b     memory of a training pass over tokens, by attention
  softpp-3      published top-1 over images a second, which are measured here
  softpp-5      how the Newton iteration converges on the landmark kernels of a model (--model)
  softpp-6a     eigenvalues of a landmark kernel of a model (--model)
  softpp-6b     norm of the inverse over landmarks, with random weights and trained (--model)
  polaformer-3  weights of the gates G^s and G^o of a model (--model)
  polaformer-4  published top-1 over published MACs, and over a measured time
  polaformer-5  how a row's weights are spread, and its entropy, in some models (--model)

Published points come from studies/tables. No curve is copied from a picture. On a CPU, times are
processor times, so other work on the machine does not count.

Examples:
  python studies/paper_figures.py softpp-1b --depth 2 --multiples 1 2 4
  python studies/paper_figures.py softpp-5 --model CONFIG CHECKPOINT SOFT++ \\
      --images digits data/mini/classification/val --out work_dirs/softpp-5.png
  python studies/paper_figures.py softpp-5 --numbers work_dirs/softpp-5.json \\
      --out again.png                                                   # draw it again
"""

from pathlib import Path
from typing import Callable, Dict, NamedTuple

import torch
from reproduction import figure_drawings as drawings
from reproduction import figure_numbers as numbers
from reproduction.inverse_norms import draw_inverse_norms, inverse_norms

from mmlaplace.analysis.measuring import describe_machine
from mmlaplace.commands.command_line import ToolParser, positive, read_json, write_json
from mmlaplace.lab.figures import save


class Figure(NamedTuple):
    """How a figure is made.

    Attributes:
        numbers: What it shows, from the arguments.
        draw: A matplotlib figure of these numbers.
        models: How many ``--model`` it takes: ``'none'``, ``'one'`` or ``'some'``.
    """

    numbers: Callable
    draw: Callable
    models: str = 'none'


FIGURES: Dict[str, Figure] = {
    'softpp-1a': Figure(numbers.parameters, drawings.draw_parameters),
    'softpp-1b': Figure(numbers.memory, drawings.draw_memory),
    'softpp-3': Figure(numbers.speed, drawings.draw_speed),
    'softpp-5': Figure(numbers.newton, drawings.draw_newton, 'one'),
    'softpp-6a': Figure(numbers.eigenvalues, drawings.draw_eigenvalues, 'one'),
    'softpp-6b': Figure(inverse_norms, draw_inverse_norms, 'one'),
    'polaformer-3': Figure(numbers.gates, drawings.draw_gates, 'one'),
    'polaformer-4': Figure(numbers.speed_and_macs, drawings.draw_speed_and_macs),
    'polaformer-5': Figure(numbers.rows, drawings.draw_rows, 'some'),
}


def parse_args(parser: ToolParser):
    parser.add_argument('name', choices=list(FIGURES), metavar='NAME')
    parser.add_argument(
        '--model',
        nargs=3,
        action='append',
        default=[],
        metavar=('CONFIG', 'CHECKPOINT', 'LABEL'),
        help='a trained model; several of them for polaformer-5',
    )
    parser.add_argument(
        '--run',
        nargs=3,
        action='append',
        default=[],
        metavar=('CONFIG', 'RESULT', 'LABEL'),
        help='softpp-1a: a trained small copy, and its result or training log (JSON)',
    )
    parser.add_argument(
        '--images',
        nargs=2,
        action='append',
        default=[],
        metavar=('NAME', 'FOLDER'),
        help='to look at, several times for softpp-5; default: photographs of scikit-image',
    )
    parser.add_argument('--count', type=positive, default=100, help='of a folder; %(default)s')
    parser.add_argument(
        '--image-size', nargs=2, type=positive, metavar=('H', 'W'), help='of the images'
    )
    parser.add_argument('--rows', nargs='+', help='softpp-3, polaformer-4: of the table, to time')
    parser.add_argument('--batch-size', type=positive, default=1, help='to time; %(default)s')
    parser.add_argument('--rounds', type=positive, default=3, help='to time; %(default)s')
    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')
    parser.add_argument('--depth', type=positive, default=12, help='softpp-1b: layers; %(default)s')
    parser.add_argument(
        '--multiples',
        nargs='+',
        type=int,
        default=list(range(1, 9)),
        help='softpp-1b: of 784 tokens',
    )
    parser.add_argument(
        '--memory', type=float, default=16, help='softpp-1b: GB not to be exceeded; %(default)s'
    )
    parser.add_argument('--landmarks', type=positive, default=1024, help='softpp-6a; %(default)s')
    parser.add_argument('--numbers', type=Path, help='JSON of an earlier call, to draw again')
    parser.add_output('--out', suffixes=('.png',), help='.png; default: work_dirs/NAME.png')
    return parser.parse_args()


def main() -> None:
    parser = ToolParser(__doc__)
    args = parse_args(parser)
    figure = FIGURES[args.name]
    counts = dict(none=0, one=1, some=max(1, len(args.model)))
    if args.numbers is None and len(args.model) != counts[figure.models]:
        needed = dict(none='no --model', one='one --model', some='at least one --model')
        parser.error(f'{args.name} takes {needed[figure.models]}, got {len(args.model)}')
    out = args.out or Path(f'work_dirs/{args.name}.png')
    written = [out] if args.numbers else [out, out.with_suffix('.json')]
    for path in written:
        parser.check_output(path, args.force)
    if args.numbers is not None:
        found = read_json(args.numbers, 'figure')
        if found['figure'] != args.name:
            parser.error(
                f'{args.numbers} has the numbers of {found["figure"]}, not of {args.name}; give '
                'another file'
            )
    else:
        torch.manual_seed(0)
        machine = describe_machine(torch.device(args.device))
        with parser.refusing(ValueError):
            found = dict(figure=args.name, machine=machine, **figure.numbers(args))
        write_json(out.with_suffix('.json'), found)
    save(figure.draw(found), out, dpi=120)
    print('wrote', *written)


if __name__ == '__main__':
    main()
