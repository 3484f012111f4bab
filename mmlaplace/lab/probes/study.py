"""Studies: attentions x probes x learning rates x seeds, of which finished runs are kept."""

import fnmatch
import math
import statistics
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from ...model_zoo import files_root, read_yaml
from ...models.known_options import did_you_mean
from ..runner import Job, Outcome, run_all
from ..side_by_side.attention_study import candidates, config_of, device_setting
from .results import append_result, by_key, key_of, read_results
from .tasks import build_probe
from .training import Schedule, train_probe

CONFIG = 'configs/probes/probes.yml'
SOLVED = 0.99  # no further learning rate is tried
REACHED = 0.9  # the accuracy from which a harder probe is tried, and the largest is reported
DISAGREE = 0.5  # if accuracies of seeds differ by more, one seed does not show the best rate
QUICK = dict(steps=20)


class Study(NamedTuple):
    """A study, as the config has it.

    Attributes:
        title: Title of its table.
        probes: A dict for each column: ``type``, and options of the probe.
        attentions: Configs of the rows by their names.
        rates: Learning rates, of which an attention has the best.
        schedule: Arguments of :class:`Schedule`.
        model: Arguments of :class:`ProbeModel`.
        while_reached: Whether an attention gets a probe only after it has reached an accuracy of
            0.9 in all earlier ones of this type. Default: False.
        device: Where models are trained. Default: ``'cpu'``.
    """

    title: str
    probes: List[dict]
    attentions: Dict[str, dict]
    rates: List[float]
    schedule: dict
    model: dict
    while_reached: bool = False
    device: str = 'cpu'


def all_attentions() -> Dict[str, dict]:
    """Registered attentions, and some with options, by name. They have their own defaults."""
    return {name.replace('Attention', ''): config_of(name, landmarks=None) for name in candidates()}


def read_studies() -> Dict[str, Study]:
    """The studies of the config of mmlaplace by their names."""
    content = read_yaml(files_root() / CONFIG)
    return {
        name: Study(
            study['title'],
            study['probes'],
            study.get('attentions') or all_attentions(),
            study.get('rates', content['rates']),
            {**content['schedule'], **study.get('schedule', {})},
            {**content['model'], **study.get('model', {})},
            study.get('while_reached', False),
        )
        for name, study in content['studies'].items()
    }


def chosen(study: Study, tasks: Sequence[str] = (), attentions: Sequence[str] = ()) -> Study:
    """A study with some of its probes and attentions.

    Args:
        study: The study.
        tasks: Names of probes. Default: (), all of them.
        attentions: Names or patterns, such as ``'Pola*'``. Default: (), all of them.

    Raises:
        ValueError: For a name or pattern that the study does not have.
    """
    probes = [probe for probe in study.probes if not tasks or probe['type'] in tasks]
    had = [probe['type'] for probe in study.probes]
    for task in tasks:
        if task not in had:
            raise ValueError(
                f'the study has no probe {task!r}{did_you_mean(task, had)}; its probes are '
                f'{sorted(set(had))}'
            )
    names = list(study.attentions)
    for pattern in attentions:
        if not any(matches(name, pattern) for name in names):
            raise ValueError(
                f'no attention of the study matches {pattern!r}{did_you_mean(pattern, names)}; it '
                f'has {names}'
            )
    rows = {
        name: cfg
        for name, cfg in study.attentions.items()
        if not attentions or any(matches(name, pattern) for pattern in attentions)
    }
    return study._replace(probes=probes, attentions=rows)


def matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatch(name.lower(), pattern.lower().replace('attention', ''))


def settings_of(study: Study, attention: str, probe: dict, lr: float, seed: int) -> dict:
    """The settings on which a result depends. They are stored with it."""
    return dict(
        probe=probe,
        attn_cfg=study.attentions[attention],
        lr=lr,
        seed=seed,
        schedule=study.schedule,
        model=study.model,
        **device_setting(study.device),
    )


class Runner:
    """Runs a study, and appends each result to a file.

    Args:
        study: The study.
        path: The file of results. Runs that it has are not repeated, also if another call has
            finished them meanwhile.
        tell: Function that gets a line for each run.

    Attributes:
        failures: A sentence for each run that failed. The others go on.
    """

    def __init__(self, study: Study, path: Path, tell: Callable[[str], Any]) -> None:
        self.study = study
        self.path = path
        self.tell = tell
        self.failures: List[str] = []
        self._read: Tuple[int, Dict[str, dict]] = (-1, {})  # bytes of the file, and its results

    def results(self) -> Dict[str, dict]:
        """The results of the file. It only grows, and is read again after it has grown."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size != self._read[0]:
            self._read = size, by_key(read_results(self.path))
        return self._read[1]

    def run(self, seeds: Sequence[int], until: float = float('inf')) -> None:
        """Run all learning rates with the first seed, then the best rate with the others.

        Where the seeds of the best rate disagree, the other rates get all seeds too.

        Args:
            seeds: The seeds.
            until: No run starts after this time, in seconds as by ``time.monotonic``. Default: inf.
        """
        self.study = self.study._replace(probes=self.buildable())
        run_all(self.jobs(seeds, until), ended=self.ended)

    def jobs(self, seeds: Sequence[int], until: float) -> Iterator['Training']:
        for attention, probe, lr, seed in self.planned(seeds):
            if time.monotonic() > until:
                self.tell('the time is up; call the command again, and it goes on from here')
                return
            yield Training(self, attention, probe, lr, seed)

    def ended(self, job: 'Training', outcome: Outcome) -> None:
        """Tell what a run has found, or why it failed."""
        if isinstance(outcome, str):
            self.failed(f'{job.label}: {outcome}')
        else:
            accuracy = ', '.join(f'{value:.3f}' for value in outcome['accuracy'].values())
            steps, seconds = outcome['steps'], outcome['seconds']
            self.tell(f'{job.label}: {accuracy} after {steps} steps, {seconds:.0f} s')

    def failed(self, text: str) -> None:
        self.failures.append(text.split('\n')[0])
        self.tell(self.failures[-1])

    def buildable(self) -> List[dict]:
        """The probes of the study but those that cannot be built, each of which is told once."""
        probes = []
        for probe in self.study.probes:
            try:
                build_probe(probe)
            except (TypeError, ValueError) as error:
                self.failed(f'{label(probe)}: {error}')
            else:
                probes.append(probe)
        return probes

    def planned(self, seeds: Sequence[int]) -> Iterator[tuple]:
        """Attention, probe, rate and seed of each run, after a look at the results so far.

        All cells come first, with one rate. Then one probe follows another.
        """
        study, first = self.study, seeds[0]
        for probe in study.probes:
            for attention in study.attentions:
                if self.is_due(attention, probe, first):
                    yield attention, probe, study.rates[0], first
        for probe in study.probes:
            for lr in study.rates if study.while_reached else study.rates[1:]:
                for attention in study.attentions:
                    best = self.best(attention, probe, first)
                    solved = best is not None and trained_accuracy(best) >= SOLVED
                    if not solved and self.is_due(attention, probe, first):
                        yield attention, probe, lr, first
            for seed in seeds[1:]:
                for attention in study.attentions:
                    best = self.best(attention, probe, first)
                    if best is not None:
                        yield attention, probe, best['settings']['lr'], seed
            for attention in study.attentions:
                if self.seeds_disagree(attention, probe, seeds):
                    for lr in study.rates:
                        yield from ((attention, probe, lr, seed) for seed in seeds)

    def is_due(self, attention: str, probe: dict, seed: int) -> bool:
        """Whether an attention has reached what a study asks for before this probe."""
        if not self.study.while_reached:
            return True
        before = self.study.probes[: self.study.probes.index(probe)]
        easier = [self.best(attention, p, seed) for p in before if p['type'] == probe['type']]
        return all(b is not None and trained_accuracy(b) >= REACHED for b in easier)

    def best(self, attention: str, probe: dict, seed: int) -> Optional[dict]:
        return best_of(self.results(), self.study, attention, probe, seed)

    def seeds_disagree(self, attention: str, probe: dict, seeds: Sequence[int]) -> bool:
        """Whether a task is learnt or not by the seed, with the best rate of the first of them."""
        best = self.best(attention, probe, seeds[0])
        if best is None:
            return False
        lr = best['settings']['lr']
        runs = by_seed(self.results(), self.study, attention, probe, lr, seeds)
        accuracies = [trained_accuracy(run) for run in runs.values()]
        return max(accuracies) - min(accuracies) > DISAGREE


class Training(Job):
    """A run of a study: an attention, a probe, a learning rate and a seed."""

    def __init__(self, runner: Runner, attention: str, probe: dict, lr: float, seed: int) -> None:
        super().__init__(f'{attention}, {label(probe)}, rate {lr:g}, seed {seed}')
        self.runner = runner
        self.settings = settings_of(runner.study, attention, probe, lr, seed)

    def result(self) -> Optional[dict]:
        return self.runner.results().get(key_of(self.settings))

    def run(self) -> dict:
        settings = self.settings
        figures = train_probe(
            build_probe(settings['probe']),
            settings['attn_cfg'],
            settings['lr'],
            settings['seed'],
            Schedule(**settings['schedule']),
            self.runner.study.device,
            **settings['model'],
        )
        result = dict(settings=settings, **figures)
        append_result(self.runner.path, result)
        return result


def label(probe: dict) -> str:
    """A probe with its options, as text."""
    options = ', '.join(f'{name} {value}' for name, value in probe.items() if name != 'type')
    return f'{probe["type"]} ({options})' if options else probe['type']


def trained_accuracy(result: dict) -> float:
    """The accuracy on maps of the training size, by which the learning rate is chosen."""
    return result['accuracy']['1']


def best_of(
    found: Dict[str, dict], study: Study, attention: str, probe: dict, seed: int
) -> Optional[dict]:
    """The result with the best learning rate, by accuracy and then by loss. None without runs."""
    runs = [
        found[key]
        for lr in study.rates
        if (key := key_of(settings_of(study, attention, probe, lr, seed))) in found
    ]
    return max(runs, key=lambda run: merit([run]), default=None)


def merit(runs: Sequence[dict]) -> Tuple[float, float]:
    """What a larger one of is better: the median accuracy of runs, and then their loss."""
    losses = [math.inf if run['loss'] is None else run['loss'] for run in runs]
    return statistics.median(map(trained_accuracy, runs)), -statistics.median(losses)


def by_seed(
    found: Dict[str, dict],
    study: Study,
    attention: str,
    probe: dict,
    lr: float,
    seeds: Sequence[int],
) -> Dict[int, dict]:
    """The results of an attention, a probe and a learning rate, by those seeds that were run."""
    keys = {seed: key_of(settings_of(study, attention, probe, lr, seed)) for seed in seeds}
    return {seed: found[key] for seed, key in keys.items() if key in found}


class Cell(NamedTuple):
    """A cell of a table: the median over seeds, of the best learning rate.

    A run learns a task or does not, and the mean of both would be neither. The best rate is that of
    the first seed, or another with the same seeds and a larger median.

    Attributes:
        accuracy: Median accuracy by the scale of the test map.
        ends: The least and the largest accuracy of a seed by the scale of the test map.
        seeds: Number of seeds.
        rates: Number of learning rates that the first seed has.
        steps: Mean steps until the probe was solved, or of the schedule.
        seconds: Mean seconds of a run.
    """

    accuracy: Dict[str, float]
    ends: Dict[str, Tuple[float, float]]
    seeds: int
    rates: int
    steps: float
    seconds: float


def cell(found: Dict[str, dict], study: Study, attention: str, probe: dict) -> Optional[Cell]:
    """The cell of an attention and a probe. None if no run is finished."""
    seeds = sorted({result['settings']['seed'] for result in found.values()})
    best = None
    for seed in seeds:
        best = best or best_of(found, study, attention, probe, seed)
    if best is None:
        return None
    runs_by_rate = {lr: by_seed(found, study, attention, probe, lr, seeds) for lr in study.rates}
    lr, first = best['settings']['lr'], best['settings']['seed']
    # The rates that have all seeds of the best one are compared over these seeds.
    compared = []
    for runs_by_seed in runs_by_rate.values():
        if runs_by_rate[lr].keys() <= runs_by_seed.keys():
            compared.append([runs_by_seed[seed] for seed in runs_by_rate[lr]])
    runs = max(compared, key=merit)
    accuracies = {scale: [run['accuracy'][scale] for run in runs] for scale in runs[0]['accuracy']}
    return Cell(
        {scale: statistics.median(values) for scale, values in accuracies.items()},
        {scale: (min(values), max(values)) for scale, values in accuracies.items()},
        len(runs),
        sum(first in runs_by_seed for runs_by_seed in runs_by_rate.values()),
        statistics.mean(run['steps'] for run in runs),
        statistics.mean(run['seconds'] for run in runs),
    )
