"""Time the classifiers with a published top-1, and draw it over their speed.

It writes docs/logs/model_zoo_cpu.json, from which make_pages.py takes images a second, and
docs/images/model_zoo_speed.png. Each model is timed alone at 224 x 224 pixels, batch 8, in turns
with PVT-tiny, whose times show how even the machine was. Peers of other projects come last.

What the log has is not timed again; remove the log to time all, in twenty minutes on an idle
machine.

Example:
  python .dev_scripts/time_model_zoo.py
"""

import json
import statistics
import sys
from typing import Any, Dict, List, Tuple

import torch
from pages.files import ROOT
from pages.model_zoo import FITTED

from mmlaplace.analysis.measuring import describe_machine, interleave, model_job
from mmlaplace.commands.command_line import ToolParser, write_json
from mmlaplace.lab.figures import new_figure, save
from mmlaplace.lab.side_by_side.backbone_candidates import find
from mmlaplace.lab.side_by_side.backbone_report import draw_families
from mmlaplace.lab.side_by_side.published_top1 import peers, published
from mmlaplace.model_zoo import ModelInfo, read_models

LOG = ROOT / 'docs/logs/model_zoo_cpu.json'
PICTURE = ROOT / 'docs/images/model_zoo_speed.png'
SIDE, BATCH, ROUNDS, THREADS, BASE = 224, 8, 5, 2, 'pvt-tiny'


def timed_models() -> List[ModelInfo]:
    """The classifiers with a published top-1 at 224 x 224 pixels."""
    classifiers = (m for m in read_models() if m.task == 'classification' and 'px' not in m.name)
    return [model for model in classifiers if 'Top 1 Accuracy' in model.metadata['Published']]


def seconds(name: str, base: Any, images: torch.Tensor) -> Dict[str, float]:
    """Images a second of a candidate, and of the base beside it."""
    torch.manual_seed(0)
    model = find(name)(train=False)
    model.eval()  # mmpretrain's return None
    jobs = {'model': model_job(model, images, False), 'base': base}
    for job in jobs.values():
        job()
    found = interleave(jobs, ROUNDS, images.device, budget=60)
    speeds = {key: BATCH / statistics.median(times) for key, times in found.items()}
    return {'images per second': speeds['model'], 'base': speeds['base']}


def measure() -> None:
    """Time the models that the log lacks, and write the log after each."""
    images = torch.randn(BATCH, 3, SIDE, SIDE)
    base = model_job(find(BASE)(train=False), images, False)  # without dropout or BatchNorm
    result: Dict[str, Any] = dict(
        machine=describe_machine(images.device),
        side=SIDE,
        batch=BATCH,
        rounds=ROUNDS,
        base=BASE,
        models={},
        peers={},
    )
    known = json.loads(LOG.read_text()) if LOG.is_file() else result
    models = [model for model in timed_models() if model.name not in known['models']]
    if known['machine'] != result['machine']:
        if models:
            sys.exit(f'{LOG.name} is of {known["machine"]}; remove it to time all models here')
        return
    result.update(models=known['models'], peers=known['peers'])
    for model in models:
        result['models'][model.name] = seconds(str(model.config), base, images)
        write_json(LOG, result)
    for name in peers():
        if published()[name].side == SIDE and name not in result['peers']:
            try:
                result['peers'][name] = seconds(name, base, images)
            except ImportError as error:
                print(f'{name} was not measured: {error}')
        write_json(LOG, result)


def draw() -> None:
    """A line for each family, through its sizes, coloured if one is the best at its speed."""
    result = json.loads(LOG.read_text())
    lines: Dict[str, List[Tuple[float, float]]] = {}
    for model in timed_models():
        top1 = model.metadata['Published']['Top 1 Accuracy']
        if model.name in result['models']:
            speed = result['models'][model.name]['images per second']
            family = model.name.rpartition('-')[0]
            if model.family == FITTED:
                family += ', sizes fitted'
            lines.setdefault(family, []).append((speed, top1))
    others = [
        (peer['images per second'], published()[name].top1)
        for name, peer in result['peers'].items()
    ]
    figure, axis = new_figure(1, 1, (8, 6))
    draw_families(axis, lines, others, grey=True)
    axis.plot([], [], color='0.8', marker='.', label='further families here')
    axis.scatter(*zip(*others), color='0.4', marker='x', label='other projects')
    machine = result['machine']
    axis.set(
        xlabel=f'images a second, {machine["CPU"]}, {machine["threads"]} threads, {SIDE} x {SIDE}',
        ylabel='top-1 on ImageNet-1k, published (%)',
    )
    figure.legend(loc='outside lower center', ncols=3)
    save(figure, PICTURE, dpi=120)


def main() -> None:
    ToolParser(__doc__).parse_args()
    torch.set_num_threads(THREADS)
    measure()
    draw()
    print(f'wrote {LOG.relative_to(ROOT)} and {PICTURE.relative_to(ROOT)}')


if __name__ == '__main__':
    main()
