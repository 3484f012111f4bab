"""What hybrids keep and cost: docs/logs/hybrids.jsonl, hybrids_time.json and images/hybrids.png.

A ViT of six blocks is trained for each task. Then other attentions take the place of softmax in all
blocks but a few. A finished run is not repeated, and a killed call goes on. Tasks whose data is
missing are left out.

Examples:
  python tools/dataset_converters/make_mini_datasets.py --tasks textures segmentation rendered
  python .dev_scripts/study_hybrids.py           # all runs that the log lacks
  python .dev_scripts/study_hybrids.py --time    # about five minutes on a machine without load
  python .dev_scripts/study_hybrids.py --draw    # the picture, and the table of the page
"""

import json
import time
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import torch
from hybrids_report import draw, table, time_all
from hybrids_tasks import (
    BLOCKS,
    HARM_STEPS,
    HOST,
    LR,
    NEW_PARTS,
    OPTIONS,
    PLAN,
    READERS,
    SEEDS,
    STEPS,
    TRUNK_LR,
    TRUNK_STEPS,
    WINDOWS,
    Data,
    Model,
    batches_of,
    loss_of,
    score,
    scores,
)
from marked_tables import with_tables

from mmlaplace.checkpoints import load_weights, write_weights
from mmlaplace.commands.command_line import ToolParser
from mmlaplace.lab.probes.results import append_result, by_key, key_of, read_results
from mmlaplace.linearizing import (
    Schedule,
    distill,
    fit,
    keep_weights,
    linear_config,
    softmax_blocks,
    softmax_places,
)
from mmlaplace.linearizing.hybrids import LEARN, MEASURE, harm_of
from mmlaplace.writing import write_whole

DOCS = Path(__file__).resolve().parent.parent / 'docs'


class Study:
    """All runs of the tasks whose data is there, whose results go into a log."""

    def __init__(self, log: Path, data_root: Path, work_dir: Path) -> None:
        self.log, self.data_root, self.work_dir = log, data_root, work_dir
        self.results = by_key(read_results(log))
        self.read: Dict[str, Data] = {}
        self.trained: Dict[str, Model] = {}

    def data(self, task: str) -> Data:
        if task not in self.read:
            self.read[task] = READERS[task](self.data_root / task)
        return self.read[task]

    def run(self, work: Callable[..., dict], **settings: Any) -> dict:
        """The result of some work with these settings, which the log may have."""
        key = key_of(settings)
        if key not in self.results:
            start = time.process_time()
            found = dict(settings=settings, **work(**settings))
            found['seconds'] = round(time.process_time() - start, 1)
            append_result(self.log, found)
            self.results[key] = found
            print({name: found[name] for name in found if name != 'losses'}, flush=True)
        return self.results[key]

    def trunk(self, task: str) -> Model:
        """The model with softmax, trained or loaded."""
        if task in self.trained:
            return self.trained[task]
        torch.manual_seed(0)
        model, file = Model(HOST, self.data(task)), self.work_dir / f'{task}.pth'

        def train(task: str, variant: str, steps: int) -> dict:
            model.train()
            made = fit(
                model, list(model.parameters()), partial(loss_of, model),
                batches_of(self.data(task), 1000), steps, Schedule(lr=TRUNK_LR),
            )  # fmt: skip
            write_weights(file, model.state_dict(), {})
            return dict(losses=made['losses'], score=scores(model, self.data(task)))

        settings = dict(task=task, variant='softmax', steps=TRUNK_STEPS[task])
        if not file.is_file():
            self.results.pop(key_of(settings), None)
        self.run(train, **settings)
        load_weights(model, str(file))
        self.trained[task] = model.eval()
        return model

    def swapped(
        self, task: str, attention: str, variant: str = 'harm', keep: Sequence[str] = ()
    ) -> Model:
        old, linear = self.trunk(task).backbone, dict(type=attention, **OPTIONS[attention])
        places = list(softmax_places(old))
        windows = {'windows': places[1::2], 'only windows': places}.get(variant, [])
        plan = {place: WINDOWS if place in windows else linear for place in places}
        return Model(linear_config(HOST, old, plan, keep=keep), self.data(task))

    def harms(self, task: str, attention: str, variant: str, steps: int) -> dict:
        torch.manual_seed(0)
        old, new = self.trunk(task).backbone, self.swapped(task, attention).backbone
        places = softmax_places(old)
        keep_weights(new, old, places)
        images = [x for x, _ in islice(batches_of(self.data(task), 999)(0), LEARN + MEASURE)]
        return dict(harms=[harm_of(new, old, place, images, steps, LR) for place in places])

    def hybrid(
        self, task: str, attention: str, variant: str, keep: int, seed: int,
        layer_steps: int, whole_steps: int,
    ) -> dict:  # fmt: skip
        """Linearize all blocks but some, and imitate the trunk."""
        data, old = self.data(task), self.trunk(task)
        places = softmax_places(old.backbone)
        torch.manual_seed(seed)
        order = torch.randperm(BLOCKS).tolist()
        if keep and variant == 'harm':
            names = dict(task=task, attention=attention, variant='harms', steps=HARM_STEPS)
            harms = self.run(self.harms, **names)['harms']
            order = sorted(range(BLOCKS), key=lambda block: -harms[block])
        torch.manual_seed(seed)
        kept = sorted(order[:keep])
        staying = softmax_blocks(list(places), kept)
        new = self.swapped(task, attention, variant, staying)
        changed = {place: i for place, i in places.items() if place not in staying}
        before = {name: value.clone() for name, value in new.state_dict().items()}
        new.load_state_dict({k: v for k, v in old.state_dict().items() if 'backbone' not in k},
                            strict=False)  # fmt: skip
        keep_weights(new.backbone, old.backbone, changed)
        parts = NEW_PARTS.get(variant, ())
        again = {k: v for k, v in before.items() if any(part in k for part in parts)}
        new.load_state_dict(again, strict=False)
        swapped = round(score(new, *data.small), 2)
        done = distill(
            new, old, changed, lambda step: (x for x, _ in batches_of(data, seed)(step)),
            Schedule(layer_steps, whole_steps, LR),
        )  # fmt: skip
        losses = {phase: made['losses'] for phase, made in done.items()}
        return dict(kept=kept, swapped=swapped, losses=losses, score=scores(new, data))

    def run_all(self, tasks: Sequence[str], seeds: Sequence[int]) -> None:
        """All runs, the most important first."""
        without = dict(layer_steps=0, whole_steps=sum(STEPS.values()))
        for part in PLAN:
            for task, seed, (attention, variant, keep) in product(tasks, seeds, part):
                self.run(
                    self.hybrid, task=task, attention=attention, variant=variant, keep=keep,
                    seed=seed, **(without if variant == 'no layer steps' else STEPS),
                )  # fmt: skip


def main() -> None:
    parser = ToolParser(__doc__)
    parser.add_argument('--tasks', nargs='+', choices=list(READERS), default=list(READERS))
    parser.add_argument('--seeds', nargs='+', type=int, default=SEEDS, help='default: 0 1 2')
    parser.add_argument('--data-root', type=Path, default=Path('data/mini'))
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/hybrids'))
    parser.add_argument('--docs', type=Path, default=DOCS, help='default: %(default)s')
    parser.add_argument('--draw', action='store_true', help='the picture, and the table')
    parser.add_argument('--time', action='store_true', help='measure the times')
    parser.add_argument('--sides', type=int, nargs='+', help='of the timed images')
    args = parser.parse_args()
    log, times = args.docs / 'logs/hybrids.jsonl', args.docs / 'logs/hybrids_time.json'
    torch.set_num_threads(1)
    if args.time:
        time_all(args.sides, times)
    elif args.draw:
        timed = json.loads(times.read_text()) if times.is_file() else None
        page, results = args.docs / 'linearize.md', list(by_key(read_results(log)).values())
        draw(results, timed, args.docs / 'images/hybrids.png')
        write_whole(
            page, with_tables(page.read_text(), 'hybrids', lambda name: table(results, timed))
        )
    else:
        found = [task for task in args.tasks if (args.data_root / task).is_dir()]
        for task in set(args.tasks) - set(found):
            print(f'{args.data_root / task} is missing, so this task is left out')
        Study(log, args.data_root, args.work_dir).run_all(found, args.seeds)


if __name__ == '__main__':
    main()
