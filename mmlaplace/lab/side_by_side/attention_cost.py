"""Measure time and memory of a host with one attention, over the size of the image, batch 1.

compare_attentions.py runs this tool for each attention. The last pass predicts the time and memory
of the next size. If they exceed the limits, that size is left out, and the reason is kept.

Example:
  python tools/analysis_tools/attention_cost.py LaplacianAttention --sizes 224 512 1024
"""

import math
import statistics
import time
from pathlib import Path
from typing import Callable, Dict, List, Tuple

import numpy as np
import torch
from mmengine.registry import MODELS

from mmlaplace.analysis.measuring import describe_machine, model_job, seconds_of, tensor_memory
from mmlaplace.commands.command_line import ToolParser, positive, write_json
from mmlaplace.lab.side_by_side.attention_study import (
    HOSTS,
    SIZES,
    backbone_cfg,
    config_of,
    cost_settings,
)

PASSES = ('forward', 'forward and backward')
LONGEST, LARGEST = 40, 8000  # seconds and MB of a pass to try
RUNS, BUDGET = 5, 3.0  # at most so many runs of a pass, and seconds for those after the first
CPU = torch.device('cpu')


def measure(job: Callable) -> Tuple[float, float]:
    """Median seconds, and the peak of the tensors in MB, with the gradients of the weights."""
    first = seconds_of(job, CPU)  # it warms up, and counts only where there is time for no other
    runs = min(RUNS, int(BUDGET / first))
    seconds = statistics.median([seconds_of(job, CPU) for _ in range(runs)] or [first])
    return seconds, tensor_memory(job, CPU) / 2**20


def expected(before: List[dict], key: str, side: int) -> float:
    """By the last size measured, or along the line through the last two in a log-log plot."""
    last = before[-1]
    ratio = side / last['side']
    if len(before) == 1:
        return last[key] * ratio**2
    earlier = before[-2]
    steepness = math.log(last[key] / earlier[key]) / math.log(last['side'] / earlier['side'])
    # With two sizes a quadratic cost still hides under the linear one.
    return last[key] * ratio ** max(2, steepness)


def exponent(rows: List[dict]) -> float:
    """Slope of log time over log pixels, by least squares; NaN with fewer than two sizes."""
    if len(rows) < 2:
        return math.nan
    x, y = zip(*((2 * math.log(row['side']), math.log(row['seconds'])) for row in rows))
    return float(np.polyfit(x, y, 1)[0])


def cost_of(attention: str, host: str, sizes: List[int]) -> Dict[str, dict]:
    """For each pass: rows of the sizes, what was left out and why, and the exponent.

    Args:
        attention, host: Names in the comparison. The attention has its own default options.
        sizes: Sides of the images, in pixels.
    """
    torch.manual_seed(0)
    backbone = MODELS.build(backbone_cfg(host, config_of(attention, landmarks=None), min(sizes)))
    found = {}
    for name in PASSES:
        rows, left_out = [], {}
        train = name != 'forward'
        backbone.train(train)
        for side in sorted(set(sizes)):
            if rows and expected(rows, 'seconds', side) > LONGEST:
                left_out[side] = f'expected to take more than {LONGEST} s'
            elif rows and expected(rows, 'MB', side) > LARGEST:
                left_out[side] = f'expected to take more than {LARGEST} MB'
            else:
                try:
                    job = model_job(backbone, torch.randn(1, 3, side, side), train)
                    seconds, megabytes = measure(job)
                    rows.append(dict(side=side, seconds=seconds, MB=megabytes))
                except (RuntimeError, ValueError) as error:  # as an N x N attention says it
                    left_out[side] = str(error).splitlines()[0]
        found[name] = dict(rows=rows, left_out=left_out, exponent=exponent(rows))
    return found


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('attention', help='and its options: "PolaAttention, power=3"')
    parser.add_argument('--host', choices=list(HOSTS), default='laplacianformer')
    parser.add_argument('--sizes', nargs='+', type=positive, default=list(SIZES))
    parser.add_output('--out', default=Path('work_dirs/attention_cost.json'))
    args = parser.parse_args()
    with parser.refusing(ValueError):
        config_of(args.attention)
    clocks = time.process_time(), time.perf_counter()
    cost = cost_of(args.attention, args.host, args.sizes)
    share = (time.process_time() - clocks[0]) / (time.perf_counter() - clocks[1])
    settings = cost_settings(args.attention, args.host, args.sizes)
    about = dict(machine=describe_machine(CPU), share=share)  # less than 1 on a busy machine
    write_json(args.out, dict(settings=settings, **about, cost=cost))


if __name__ == '__main__':
    main()
