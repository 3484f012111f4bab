"""Call every op of mmlaplace/ops/table.py once on a GPU, forward and backward, for a profiler.

    ncu --kernel-name-base demangled -k regex:mmlaplace python .dev_scripts/gpu/call_ops.py
    compute-sanitizer --tool racecheck python .dev_scripts/gpu/call_ops.py --side 14

Only kernels of this project are in the namespace mmlaplace.
"""

import torch
from kit import DTYPES, REHEARSAL, function_of, gradients, large_example, wait

from mmlaplace.commands.command_line import ToolParser, positive
from mmlaplace.ops.table import OPS


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--ops', nargs='+', choices=OPS, default=list(OPS), metavar='OP')
    parser.add_argument('--side', type=positive, default=56, help='of the map; default: 56')
    parser.add_argument('--images', type=positive, default=128, help='default: %(default)s')
    args = parser.parse_args()
    side, images = (7, 1) if REHEARSAL else (args.side, args.images)
    torch.manual_seed(0)
    for name in args.ops:
        for dtype_name, dtype in DTYPES.items():
            if dtype_name != 'fp32' and not OPS[name].reads_halves:
                continue
            row, tensors = large_example(name, images, 2, side, 49, 32, dtype)
            results = gradients(function_of(name, row), tensors)
            wait()
            print(f'{name}, {dtype_name}: {", ".join(str(tuple(x.shape)) for x in results)}')


if __name__ == '__main__':
    main()
