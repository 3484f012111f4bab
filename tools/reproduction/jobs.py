"""What a row needs done: training and testing, measuring, or drawing. Each keeps its own folder.

A folder's name has a hash of all that decides the result, so that rows with the same config share
a run, and a changed config is another run. What is done is kept there: ``result.json`` is written
last, and in one step. A lock on the folder is held by the processes that train in it. It outlives
the tool where that is killed, and a second call waits for it.
"""

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from mmengine.config import Config

from mmlaplace.utils.command_line import write_json, write_whole

from .files import config_text
from .paper_tables import IMAGES, METRICS, SOFT, Run, TableError, find_row, merge

TOOLS = Path(__file__).resolve().parents[1]
MEASURE = str(TOOLS / 'analysis_tools/measure_model.py')
TAIL = 25  # lines of a log that a failure quotes
LOOK = 0.5  # seconds between two looks at a command
LAUNCHERS = ('none', 'pytorch', 'slurm')


class JobFailed(RuntimeError):
    """A command of a job failed; the message has the end of its log."""


@dataclass(frozen=True)
class Settings:
    """What all jobs of a call share.

    Attributes:
        work_dir: Folder of all runs.
        scale: ``'full'`` or ``'mini'``.
        launcher: ``'none'``, ``'pytorch'`` or ``'slurm'``.
        gpus: GPUs of one run.
        partition: Of Slurm.
        options: Changes of every config, by dotted keys.
        weights: Checkpoints by ``table/row``, taken in place of training these rows.
        threads: Threads of a process on the CPU.
    """

    work_dir: Path
    scale: str
    launcher: str = 'none'
    gpus: int = 1
    partition: str = ''
    options: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, Path] = field(default_factory=dict)
    threads: int = 1


@dataclass(eq=False)
class Job:
    """One piece of work in a folder of its own.

    Attributes:
        label: For people.
        settings: Of the call.
        identity: All that decides the result.
        needs: Jobs whose results it takes, by the row that they are for.
        state: What it does, for the display.
        devices: GPUs that it may see, such as ``'0,1'``.
    """

    label: str
    settings: Settings
    identity: str
    needs: Dict[str, 'Job'] = field(default_factory=dict)
    state: str = 'waits'
    devices: Optional[str] = None

    kind = 'job'

    @property
    def key(self) -> str:
        """A hash of what decides the result."""
        needed = ''.join(f'{row}={job.key}' for row, job in sorted(self.needs.items()))
        return hashlib.sha256((self.identity + needed).encode()).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Where all of it is kept."""
        return self.settings.work_dir / self.kind / f'{self.stem}_{self.key}'

    @property
    def stem(self) -> str:
        """The readable part of the folder's name."""
        return re.sub(r'[^\w.]+', '-', self.label)

    def result(self) -> Optional[dict]:
        """What it found, if it is finished."""
        path = self.folder / 'result.json'
        return json.loads(path.read_text()) if path.is_file() else None

    def run(self) -> dict:
        """Do it, or go on with it; what it found.

        Raises:
            JobFailed: If a command fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / 'lock', 'w') as lock:
            self.state = 'waits for another process'
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self.result()
            if found is None:
                started = time.time()
                found = dict(self.work(lock.fileno()), seconds=round(time.time() - started, 1))
                write_json(self.folder / 'result.json', found)
        return found

    def work(self, lock: int) -> dict:
        """Do it, with the lock's file descriptor for the processes that it starts."""
        raise NotImplementedError

    def commands(self) -> List[List[str]]:
        """What it calls, as far as it is known before it runs."""
        raise NotImplementedError

    def call(self, command: List[str], log: str, lock: int) -> None:
        """Run a command with its output in a log.

        Raises:
            JobFailed: If it fails.
        """
        env = {
            'OMP_NUM_THREADS': str(self.settings.threads),
            'PYTHON': sys.executable,
            **os.environ,
        }
        env['GPUS'] = str(self.settings.gpus)
        if self.devices is not None:
            env['CUDA_VISIBLE_DEVICES'] = self.devices
        path = self.folder / log
        with path.open('ab') as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=env, pass_fds=(lock,)
            )
            try:
                while process.poll() is None:
                    self.watch()
                    time.sleep(LOOK)
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if process.returncode:
            end = '\n'.join(path.read_text(errors='replace').splitlines()[-TAIL:])
            raise JobFailed(
                f'{" ".join(command)} ended with status {process.returncode}; the end of {path}:\n'
                f'{end}'
            )

    def watch(self) -> None:
        """Look how far a command is."""


class Training(Job):
    """Train and test a config by the toolbox's scripts."""

    kind = 'runs'

    def __init__(
        self, row: str, run: Run, seed: int, cfg: Config, settings: Settings,
        needs: Dict[str, Job], given: Optional[Path],
    ) -> None:  # fmt: skip
        self.run_of_row, self.seed, self.cfg, self.given = run, seed, cfg, given
        use = run.weights.use if run.weights else ''
        identity = f'{settings.scale} {config_text(cfg)} {use} {given or ""}'
        label = f'{row} {run.name}'.strip()
        super().__init__(label, settings, identity, needs)

    @property
    def stem(self) -> str:
        backbone = self.cfg.model.backbone.type.lower()
        return f'{self.settings.scale}-{self.cfg.default_scope}-{backbone}-seed{self.seed}'

    @property
    def config(self) -> Path:
        """The config that is trained, whole."""
        return self.folder / 'config.py'

    @property
    def trains(self) -> bool:
        """Whether it trains, or only tests weights that there are."""
        return self.run_of_row.weights is None or self.run_of_row.weights.use != 'test'

    def commands(self) -> List[List[str]]:
        test = self.test_command('CHECKPOINT')
        return [self.train_command(), test] if self.trains else [test]

    def train_command(self) -> List[str]:
        """How it trains; a run with a checkpoint goes on from it."""
        settings, work = self.settings, str(self.folder / 'train')
        resume = ['--resume'] if (self.folder / 'train/last_checkpoint').is_file() else []
        if settings.launcher == 'slurm':
            script = ['bash', str(TOOLS / 'slurm_train.sh'), settings.partition, self.stem]
            return [*script, str(self.config), work, *resume]
        if settings.launcher == 'pytorch':
            script = ['bash', str(TOOLS / 'dist_train.sh'), str(self.config), str(settings.gpus)]
        else:
            script = [sys.executable, str(TOOLS / 'train.py'), str(self.config)]
        return [*script, '--work-dir', work, *resume]

    def test_command(self, checkpoint: str) -> List[str]:
        """How it tests."""
        settings, work = self.settings, ['--work-dir', str(self.folder / 'test')]
        if settings.launcher == 'pytorch':
            script = ['bash', str(TOOLS / 'dist_test.sh'), str(self.config), checkpoint]
            return [*script, str(settings.gpus), *work]
        script = [sys.executable, str(TOOLS / 'test.py'), str(self.config), checkpoint, *work]
        if settings.launcher == 'slurm':
            place = ['--partition', settings.partition, '--gres', 'gpu:1', '--ntasks', '1']
            return ['srun', *place, *script, '--launcher', 'slurm']
        return script

    def term_command(self, checkpoint: str) -> List[str]:
        """How the size of SOFT's attention term is measured beside its convolution of V."""
        command = [sys.executable, MEASURE, str(self.config), '--attention-term', '--checkpoint']
        return [*command, checkpoint, '--out', str(self.folder / 'terms.json'), '--force']

    def has_term(self) -> bool:
        """Whether it is a classifier with SOFT's attention."""
        return self.cfg.default_scope == 'mmpretrain' and self.cfg.model.backbone.type in SOFT

    def source(self) -> Optional[str]:
        """The checkpoint that it starts from, or tests."""
        given = [self.given, *(job.result()['checkpoint'] for job in self.needs.values()), None]
        return next((str(path) for path in given if path is not None), None)

    def work(self, lock: int) -> dict:
        cfg, checkpoint = Config(self.cfg.to_dict()), self.source()
        if checkpoint is not None and self.run_of_row.weights.use == 'backbone':
            cfg.model.backbone.init_cfg = dict(type='Pretrained', checkpoint=checkpoint)
        elif checkpoint is not None and self.run_of_row.weights.use == 'start':
            cfg.load_from = checkpoint
        write_whole(self.config, config_text(cfg))
        if self.trains:
            trained = self.folder / 'trained'
            if not trained.is_file():
                self.state = 'trains'
                self.call(self.train_command(), 'train.log', lock)
                last = (self.folder / 'train/last_checkpoint').read_text().strip()
                write_whole(trained, last)
            checkpoint = trained.read_text()
        self.state = 'tests'
        self.call(self.test_command(checkpoint), 'test.log', lock)
        logs = sorted((self.folder / 'test').glob('*/*.json'))
        if not logs:
            raise JobFailed(f'the test wrote no log into {self.folder / "test"}')
        found = dict(
            label=self.label, seed=self.seed, config_hash=self.key, checkpoint=checkpoint,
            log=str(logs[-1]), scores=json.loads(logs[-1].read_text()),
        )  # fmt: skip
        if self.has_term():
            self.state = 'is looked into'
            self.call(self.term_command(checkpoint), 'terms.log', lock)
            terms = (self.folder / 'terms.json').read_text()
            found['attention_terms'] = json.loads(terms)['attention_terms']
        return found

    def watch(self) -> None:
        logs = sorted((self.folder / 'train').glob('*/vis_data/scalars.json'))
        if self.state.startswith('trains') and logs:
            lines = logs[-1].read_text().splitlines()
            last = json.loads(lines[-1]) if lines and lines[-1].endswith('}') else {}
            loop = self.cfg.get('train_cfg') or {}
            for name, most in (('epoch', loop.get('max_epochs')), ('iter', loop.get('max_iters'))):
                if most and (name in last or 'step' in last):
                    self.state = f'trains, {name} {last.get(name, last.get("step"))} of {most}'
                    return


class Measurement(Job):
    """Count parameters and MACs, and with ``timed`` measure speed and memory."""

    kind = 'measured'

    def __init__(self, row: str, run: Run, cfg: Config, settings: Settings, timed: bool) -> None:
        self.cfg, self.timed = cfg, timed
        self.size = run.image_size if not timed or settings.scale == 'full' else None
        identity = f'{config_text(cfg)} {timed} {self.size}'
        super().__init__(f'{row} {run.name}'.strip() + ', measured', settings, identity)

    @property
    def stem(self) -> str:
        return f'{self.cfg.default_scope}-{self.cfg.model.backbone.type.lower()}'

    def commands(self) -> List[List[str]]:
        command = [sys.executable, MEASURE, str(self.folder / 'config.py')]
        command += ['--image-size', *map(str, self.size)] if self.size else []
        command += ['--speed'] if self.timed else []
        return [[*command, '--out', str(self.folder / 'measured.json'), '--force']]

    def work(self, lock: int) -> dict:
        write_whole(self.folder / 'config.py', config_text(self.cfg))
        self.state = 'is measured'
        self.call(self.commands()[0], 'measure.log', lock)
        return json.loads((self.folder / 'measured.json').read_text())


PLACEHOLDER = re.compile(r'\{(config|checkpoint|result):([^}]+)\}')


class Drawing(Job):
    """Draw a figure by a tool of this project, from the models of rows."""

    kind = 'figures'

    def __init__(self, row: str, run: Run, settings: Settings, needs: Dict[str, Job]) -> None:
        self.tool = run.tool
        super().__init__(row, settings, f'{settings.scale} {run.tool}', needs)

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
        return [[sys.executable, str(TOOLS.parent / script), *arguments]]

    @staticmethod
    def image() -> str:
        """A photograph with digits on it, of the small data."""
        images = sorted(Path('data/mini/detection/val').glob('*'))
        return str(images[0]) if images else 'IMAGE'

    def work(self, lock: int) -> dict:
        if '{image}' in self.tool and not Path(self.image()).is_file():
            raise JobFailed(
                'no image in data/mini/detection/val to draw on; '
                'python tools/dataset_converters/make_mini_datasets.py makes them'
            )
        self.state = 'draws'
        self.call(self.commands()[0], 'draw.log', lock)
        made = sorted(path for path in self.folder.iterdir() if path.suffix in ('.png', '.json'))
        return dict(label=self.label, config_hash=self.key, files=[str(path) for path in made])


def plan_run(row: str, run: Run, seed: int, settings: Settings) -> Optional[Job]:
    """The job of a run of a row, or None where it has no config for the scale.

    Raises:
        TableError: If it takes weights of a row that has none.
    """
    if run.tool:
        rows = dict.fromkeys(r for text in run.tool for _, r in PLACEHOLDER.findall(text))
        return Drawing(row, run, settings, {name: _source(name, seed, settings) for name in rows})
    spec = run.spec(settings.scale)
    if spec is None:
        return None
    cfg = spec.load()
    merge(cfg, settings.options)
    cfg.merge_from_dict({'randomness.seed': seed})
    needs, given = {}, None
    if run.weights is not None:
        given = settings.weights.get(run.weights.row)
        if given is None:
            needs = {run.weights.row: _source(run.weights.row, seed, settings)}
    return Training(row, run, seed, cfg, settings, needs, given)


def _source(name: str, seed: int, settings: Settings) -> Training:
    _, row = find_row(name)
    job = plan_run(name, row.runs[0], seed, settings) if row.covered else None
    if not isinstance(job, Training):
        raise TableError(
            f'{name} cannot give weights at the scale {settings.scale!r}: '
            f'{row.waits_for or row.why_not or "it has no config for it"}'
        )
    return job


def plan_measurements(row: str, run: Run, settings: Settings) -> Tuple[Measurement, ...]:
    """What measures the columns of a run that are measured: at full size, and at the scale."""
    wanted = [METRICS[name] for name in run.published if METRICS[name].measured]
    jobs = []
    if run.full is not None and any(metric.on_full for metric in wanted):
        jobs.append(Measurement(row, run, run.full.load(), settings, timed=False))
    spec = run.spec(settings.scale)
    if spec is not None and not all(metric.on_full for metric in wanted):
        jobs.append(Measurement(row, run, spec.load(), settings, timed=True))
    return tuple(jobs)
