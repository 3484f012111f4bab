"""Time and memory of a host with one attention, over the size of the image, batch 1.

The last pass predicts the time and memory of the next size. If they exceed the limits, that size is
left out, and the reason is kept.
"""

import math
import statistics
import time
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

import numpy as np
import torch
from mmengine.registry import MODELS

from ...analysis.measuring import describe_machine, model_job, seconds_of, tensor_memory
from ...commands.command_line import write_json
from .attention_study import backbone_cfg, config_of, cost_settings

PASSES = ('forward', 'forward and backward')
LONGEST, LARGEST = 40, 8000  # seconds and MB of a pass to try
RUNS, BUDGET = 5, 3.0  # at most so many runs of a pass, and seconds for those after the first


def measure(job: Callable, device: torch.device) -> Tuple[float, float]:
    """Median seconds, and the peak of the tensors in MB, with the gradients of the weights."""
    first = seconds_of(job, device)  # it warms up, and counts only where there is time for no other
    runs = min(RUNS, int(BUDGET / first))
    seconds = statistics.median([seconds_of(job, device) for _ in range(runs)] or [first])
    peak = tensor_memory(job, device)
    if peak is None:
        raise RuntimeError('the profiler saw fewer bytes than the pass returns')
    return seconds, peak / 2**20


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


def cost_of(
    attention: str, host: str, sides: Sequence[int], device: str = 'cpu'
) -> Dict[str, dict]:
    """For each pass: rows of the sizes, what was left out and why, and the exponent.

    Args:
        attention, host: Names in the comparison. The attention has its own default options.
        sides: Of the square images, in pixels.
        device: Where it is measured. Default: ``'cpu'``.
    """
    place = torch.device(device)
    torch.manual_seed(0)
    backbone = MODELS.build(backbone_cfg(host, config_of(attention, landmarks=None), min(sides)))
    backbone.to(place)
    found = {}
    for name in PASSES:
        rows: List[dict] = []
        left_out: Dict[int, str] = {}
        train = name != 'forward'
        backbone.train(train)
        for side in sorted(set(sides)):
            if rows and expected(rows, 'seconds', side) > LONGEST:
                left_out[side] = f'expected to take more than {LONGEST} s'
            elif rows and expected(rows, 'MB', side) > LARGEST:
                left_out[side] = f'expected to take more than {LARGEST} MB'
            else:
                try:
                    job = model_job(backbone, torch.randn(1, 3, side, side, device=place), train)
                    seconds, megabytes = measure(job, place)
                    rows.append(dict(side=side, seconds=seconds, MB=megabytes))
                except (RuntimeError, ValueError) as error:  # as an N x N attention says it
                    left_out[side] = str(error).splitlines()[0]
        found[name] = dict(rows=rows, left_out=left_out, exponent=exponent(rows))
    return found


def write_cost(
    attention: str, host: str, sides: Sequence[int], path: Path, device: str = 'cpu'
) -> None:
    """Measure as :func:`cost_of`, and write it with its settings and the machine as JSON."""
    clocks = time.process_time(), time.perf_counter()
    cost = cost_of(attention, host, sides, device)
    share = (time.process_time() - clocks[0]) / (time.perf_counter() - clocks[1])
    settings = cost_settings(attention, host, sides, device)
    about = dict(
        machine=describe_machine(torch.device(device)), share=share
    )  # less than 1 on a busy machine
    write_json(path, dict(settings=settings, **about, cost=cost))
