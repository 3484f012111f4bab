"""The jobs of a row: a training with its test, a measurement, or a drawing."""

import json
import pprint
import re
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

import torch
from mmengine.config import Config
from mmengine.registry import MODELS

from mmlaplace.commands.data_folders import missing_folder
from mmlaplace.lab.lra import SequenceEncoder
from mmlaplace.lab.runner import JobFailed
from mmlaplace.models import SOFTAttention
from mmlaplace.writing import write_whole

from .launching import Job, Settings
from .paper_tables import IMAGES, METRICS, Run, Spec, TableError, Weights, find_row, merge

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
MEASURE = str(TOOLS / 'analysis_tools/get_flops.py')
# GPUs x images on each, in the name of a config: fcn_r50-d8_4xb2-80k_cityscapes-512x1024.py.
NAMED_BATCH = re.compile(r'_(\d+)xb(\d+)[-_]')


class Training(Job):
    """Train and test a config with the toolbox's scripts.

    Args:
        label: Name in messages.
        checkpoint: The checkpoint to test, ``'last'`` or ``'best'``.
        seed: Seed of the run.
        cfg: The config with all options.
        settings: The settings of the call.
        weights: Weights of another row that the run takes, or None.
        needs: The job that makes these weights, or nothing if the call gives them.
    """

    kind = 'runs'

    def __init__(
        self,
        label: str,
        checkpoint: str,
        seed: int,
        cfg: Config,
        settings: Settings,
        weights: Optional[Weights],
        needs: Mapping[str, Job],
    ) -> None:
        self.checkpoint, self.seed, self.cfg, self.weights = checkpoint, seed, cfg, weights
        self.given = settings.weights.get(weights.row) if weights else None
        use = weights.use if weights else ''
        identity = f'{settings.scale} {text_of_result(cfg)} {use} {_state_of(self.given)}'
        super().__init__(label, settings, identity, needs)
        if self.trains:
            self.identity += f' {self.processes} {checkpoint}'

    @property
    def stem(self) -> str:
        backbone = self.cfg.model.backbone.type.lower()
        return f'{self.settings.scale}-{self.cfg.default_scope}-{backbone}-seed{self.seed}'

    @property
    def config(self) -> Path:
        """Path of the config to train, with all options."""
        return self.folder / 'config.py'

    @property
    def trains(self) -> bool:
        """Whether the job trains. Otherwise it only tests given weights."""
        return self.weights is None or self.weights.use != 'test'

    @property
    def fitting_processes(self) -> Optional[float]:
        """The number of processes that fits the learning rate.

        None if the config does not state a batch size, or scales the learning rate itself.
        """
        scale, loader = self.cfg.get('auto_scale_lr') or {}, self.cfg.get('train_dataloader')
        meant = scale.get('base_batch_size')
        named = NAMED_BATCH.search(Path(self.cfg.filename or '').name)
        if meant is None and named:  # configs of mmseg state it only in their names
            meant = int(named[1]) * int(named[2])
        if not (self.trains and meant and loader) or scale.get('enable'):
            return None
        return meant / (loader.batch_size * self.cfg.optim_wrapper.get('accumulative_counts', 1))

    @property
    def processes(self) -> int:
        """The number that fits the learning rate, if the call has so many GPUs."""
        most = self.settings.gpus if self.settings.launcher != 'none' else 1
        fitting = self.fitting_processes
        return int(fitting) if fitting is not None and fitting in range(1, most) else most

    def wrong_batch(self) -> str:
        """The reason why the learning rate does not fit the batch, or ``''``."""
        fitting = self.fitting_processes
        if fitting is None or fitting == self.processes:
            return ''
        return (
            f'{self.label}: its batch size and learning rate are for {fitting:g} processes, but it '
            f'has {self.processes}'
        )

    def missing_data(self) -> str:
        """The missing data folder and the command that makes it, or ``''``."""
        return missing_folder(self.cfg, 'test')

    def commands(self) -> List[List[str]]:
        test = self.test_command('CHECKPOINT')
        return [self.train_command(), test] if self.trains else [test]

    def train_command(self) -> List[str]:
        """The command of the training. It resumes from the last checkpoint, if there is one."""
        settings, work = self.settings, str(self.folder / 'train')
        resume = ['--resume'] if (self.folder / 'train/last_checkpoint').is_file() else []
        if settings.launcher == 'slurm':
            script = ['bash', str(TOOLS / 'slurm_train.sh'), settings.partition, self.stem]
            return [*script, str(self.config), work, *resume]
        if settings.launcher == 'pytorch':
            script = ['bash', str(TOOLS / 'dist_train.sh'), str(self.config), str(self.processes)]
        else:
            script = [sys.executable, str(TOOLS / 'train.py'), str(self.config)]
        return [*script, '--work-dir', work, *resume]

    def test_command(self, checkpoint: str) -> List[str]:
        """The command of the test."""
        settings, work = self.settings, ['--work-dir', str(self.folder / 'test')]
        if settings.launcher == 'pytorch':
            script = ['bash', str(TOOLS / 'dist_test.sh'), str(self.config), checkpoint]
            return [*script, str(self.processes), *work]
        # One process needs no launcher, which would need a port that another test may use.
        return self.on_one_gpu(
            [sys.executable, str(TOOLS / 'test.py'), str(self.config), checkpoint, *work]
        )

    def term_command(self, checkpoint: str) -> List[str]:
        """The command that compares the size of SOFT's attention term with its convolution."""
        command = [sys.executable, MEASURE, str(self.config), '--attention-term', '--checkpoint']
        command += [checkpoint, '--out', str(self.folder / 'terms.json'), '--force']
        return self.on_one_gpu(command)

    def trained_checkpoint(self) -> str:
        """The checkpoint to test.

        Raises:
            JobFailed: If the best one is to be tested, and the training has kept none.
        """
        if self.checkpoint == 'last':
            return (self.folder / 'train/last_checkpoint').read_text(encoding='utf-8').strip()
        kept = (self.folder / 'train').glob('best_*.pth')
        # By the epoch or iteration that ends a name; times of files are lost in a copy.
        best = sorted(kept, key=lambda path: list(map(int, re.findall(r'\d+', path.stem)[-1:])))
        if not best:
            raise JobFailed(
                f'there is no best_*.pth in {self.folder / "train"} to test; set '
                'default_hooks.checkpoint.save_best in the config, which keeps it'
            )
        return str(best[-1])

    def has_term(self) -> bool:
        """Whether the model is a classifier of images with SOFT's attention."""
        backbone = self.cfg.model.backbone
        # Backbones of toolboxes are in other registries, and there are no photographs of sequences.
        others = (None, SequenceEncoder)
        if self.cfg.default_scope != 'mmpretrain' or MODELS.get(backbone.type) in others:
            return False
        with torch.device('meta'):
            built = MODELS.build({**backbone, 'init_cfg': None})
        return any(isinstance(module, SOFTAttention) for module in built.modules())

    def source(self) -> Optional[str]:
        """The checkpoint from which the training starts, or which is tested, or None."""
        given: List[Any] = [self.given]
        for job in self.needs.values():
            found = job.result()
            assert found is not None, f'{job.label} is not finished'
            given.append(found['checkpoint'])
        return next((str(path) for path in given if path is not None), None)

    def carry_out(self, lock: int) -> dict:
        missing = self.missing_data()
        if missing:
            raise JobFailed(missing)
        cfg, checkpoint = Config(self.cfg.to_dict()), self.source()
        use = self.weights.use if self.weights else ''
        if checkpoint is not None and use == 'backbone':
            cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
        elif checkpoint is not None and use == 'start':
            cfg.load_from = checkpoint
        write_whole(self.config, config_text(cfg))
        if self.trains:
            trained = self.folder / 'trained'
            if not trained.is_file():
                self.state = 'trains'
                self.call(self.train_command(), 'train.log', lock)
                write_whole(trained, self.trained_checkpoint())
            checkpoint = trained.read_text(encoding='utf-8')
        assert checkpoint is not None  # a job without a training has weights
        self.state = 'tests'
        self.call(self.test_command(checkpoint), 'test.log', lock)
        logs = sorted((self.folder / 'test').glob('*/*.json'))
        if not logs:
            raise JobFailed(
                f'the test wrote no log into {self.folder / "test"}; test.log may have the reason'
            )
        found = dict(
            label=self.label,
            seed=self.seed,
            config_hash=self.key,
            checkpoint=checkpoint,
            log=str(logs[-1]),
            scores=json.loads(logs[-1].read_bytes()),
        )
        if self.has_term():
            self.state = 'is looked into'
            self.call(self.term_command(checkpoint), 'terms.log', lock)
            (terms,) = json.loads((self.folder / 'terms.json').read_bytes())['rows']
            found['attention_terms'] = terms['attention_terms']
        return found

    def watch(self) -> None:
        logs = sorted((self.folder / 'train').glob('*/vis_data/scalars.json'))
        if self.state.startswith('trains') and logs:
            lines = logs[-1].read_text(encoding='utf-8').splitlines()
            last = json.loads(lines[-1]) if lines and lines[-1].endswith('}') else {}
            loop = self.cfg.get('train_cfg') or {}
            for name, most in (('epoch', loop.get('max_epochs')), ('iter', loop.get('max_iters'))):
                if most and (name in last or 'step' in last):
                    self.state = f'trains, {name} {last.get(name, last.get("step"))} of {most}'
                    return


def config_text(cfg: Config) -> str:
    """The text of a config file with all options and no base. It leaves out ``work_dir``."""
    content = {key: value for key, value in cfg.to_dict().items() if key != 'work_dir'}
    texts = (
        f'{key} = {pprint.pformat(value, width=100, sort_dicts=False)}\n'
        for key, value in content.items()
    )
    return ''.join(texts)


def text_of_result(cfg: Config) -> str:
    """The text without what changes no result: the checks before the first step."""
    content = cfg.to_dict()
    content.pop('first_checks', None)
    hooks = dict(content.get('default_hooks') or {})
    if hooks.pop('first_checks', None) is not None:
        content['default_hooks'] = hooks
    return config_text(Config(content))


def _state_of(file: Optional[Path]) -> str:
    """Path, size and time of a file of weights, so that a change of the file is noticed."""
    if file is None or not file.is_file():
        return str(file or '')
    return f'{file} {file.stat().st_size} {file.stat().st_mtime_ns}'


class Measurement(Job):
    """Count parameters and MACs. With ``timed``, measure speed and memory too."""

    kind = 'measured'

    def __init__(self, row: str, run: Run, cfg: Config, settings: Settings, timed: bool) -> None:
        self.cfg, self.timed = cfg, timed
        self.size = run.image_size if not timed or settings.scale == 'full' else None
        identity = f'{text_of_result(cfg)} {timed} {self.size}'
        super().__init__(f'{row} {run.name}'.strip() + ', measured', settings, identity)
        if timed:
            self.identity += f' {self.place()}'

    @property
    def stem(self) -> str:
        return f'{self.cfg.default_scope}-{self.cfg.model.backbone.type.lower()}'

    @property
    def alone(self) -> bool:
        """Whether other jobs would slow it down. Jobs share a CPU, but no GPU and no Slurm node."""
        return self.timed and self.settings.launcher != 'slurm' and not torch.cuda.device_count()

    def commands(self) -> List[List[str]]:
        command = [sys.executable, MEASURE, str(self.folder / 'config.py')]
        command += ['--image-size', *map(str, self.size)] if self.size else []
        command += ['--time'] if self.timed else []
        command += ['--out', str(self.folder / 'measured.json'), '--force']
        return [self.on_one_gpu(command)]

    def carry_out(self, lock: int) -> dict:
        write_whole(self.folder / 'config.py', config_text(self.cfg))
        self.state = 'is measured'
        self.call(self.commands()[0], 'measure.log', lock)
        content = json.loads((self.folder / 'measured.json').read_bytes())
        (row,) = content['rows']
        return dict(row, machine=content['machine'])


PLACEHOLDER = re.compile(r'\{(config|checkpoint|result):([^}]+)\}')


class Drawing(Job):
    """Draw a figure with a tool of this project, from the trained models of rows."""

    kind = 'figures'
    needs: Dict[str, Training]  # type: ignore[assignment]

    def __init__(
        self, row: str, run: Run, settings: Settings, needs: Mapping[str, Training]
    ) -> None:
        self.tool = run.drawn_by(settings.scale)
        super().__init__(row, settings, f'{settings.scale} {self.tool}', needs)

    def commands(self) -> List[List[str]]:
        def fill(found: re.Match) -> str:
            job = self.needs[found[2]]
            checkpoint = (job.result() or {}).get('checkpoint', 'CHECKPOINT')
            result = job.folder / 'result.json'
            return str(dict(config=job.config, checkpoint=checkpoint, result=result)[found[1]])

        script, *arguments = self.tool
        arguments = [PLACEHOLDER.sub(fill, argument) for argument in arguments]
        values = dict(IMAGES[self.settings.scale], folder=str(self.folder), image=self.image())
        arguments = [argument.format(**values) for argument in arguments]
        return [self.on_one_gpu([sys.executable, str(TOOLS.parent / script), *arguments])]

    @staticmethod
    def image() -> str:
        """Path of a validation image of the mini detection data, or ``'IMAGE'``."""
        images = sorted(Path('data/mini/detection/val').glob('*'))
        return str(images[0]) if images else 'IMAGE'

    def carry_out(self, lock: int) -> dict:
        if '{image}' in self.tool and not Path(self.image()).is_file():
            raise JobFailed(
                'there is no image in data/mini/detection/val to draw on; '
                'python tools/dataset_converters/make_mini_datasets.py makes them'
            )
        self.state = 'draws'
        self.call(self.commands()[0], 'draw.log', lock)
        made = sorted(path for path in self.folder.iterdir() if path.suffix in ('.png', '.json'))
        return dict(label=self.label, config_hash=self.key, files=[str(path) for path in made])


def plan_run(row: str, run: Run, seed: int, settings: Settings) -> Optional[Job]:
    """The job of a run of a row, or None if the run has no config for the scale.

    Raises:
        TableError: If the run takes weights of a row that cannot give them, or if weights are
            given for a row with several runs.
    """
    if run.tool:
        texts = run.drawn_by(settings.scale)
        rows = dict.fromkeys(r for text in texts for _, r in PLACEHOLDER.findall(text))
        return Drawing(row, run, settings, {name: _source(name, seed, settings) for name in rows})
    spec = run.spec(settings.scale)
    if spec is None:
        return None
    cfg = _changed(spec, settings)
    cfg.merge_from_dict({'randomness.seed': seed})
    needs, weights = {}, run.weights
    if row in settings.weights:
        if run.name:
            raise TableError(
                f'--weights {row}: the row has several runs, one of them {run.name!r}; only a row '
                'with one run takes weights'
            )
        weights = Weights(row, 'test')
    elif weights is not None and weights.row not in settings.weights:
        needs = {weights.row: _source(weights.row, seed, settings)}
    label = f'{row} {run.name}'.strip()
    return Training(label, run.checkpoint, seed, cfg, settings, weights, needs)


def _changed(spec: Spec, settings: Settings) -> Config:
    cfg = spec.load()
    merge(cfg, settings.options)
    return cfg


def _source(name: str, seed: int, settings: Settings) -> Training:
    _, row = find_row(name)
    job = plan_run(name, row.runs[0], seed, settings) if row.covered else None
    if not isinstance(job, Training):
        raise TableError(
            f'{name} cannot give weights at the scale {settings.scale!r}: '
            f'{row.reason or "it has no config for it"}'
        )
    return job


def plan_measurements(row: str, run: Run, settings: Settings) -> Tuple[Measurement, ...]:
    """The jobs that measure columns of a run: counts at full size, speed at the call's scale."""
    wanted = [METRICS[name] for name in run.published if METRICS[name].measured]
    jobs = []
    if run.full is not None and any(metric.on_full for metric in wanted):
        jobs.append(Measurement(row, run, _changed(run.full, settings), settings, timed=False))
    spec = run.spec(settings.scale)
    if spec is not None and not all(metric.on_full for metric in wanted):
        jobs.append(Measurement(row, run, _changed(spec, settings), settings, timed=True))
    return tuple(jobs)
