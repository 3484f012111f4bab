"""Which softmax blocks to keep: the harm and the time of each block, and a plan."""

import copy
import json
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import torch
import torch.nn as nn
from mmengine import dist
from torch import Tensor

from ..analysis.measuring import describe_machine, interleave
from ..writing import write_whole
from .distilling import Schedule, fit, half_dtype, read_state, weights_sha256, write_state
from .losses import calls_recorded, maps_loss, replay, replay_loss

LEARN, MEASURE = 4, 2  # batches from which an attention learns, and others for its harm
ROUNDS = 15
WHOLE = 'whole'


class Plan(NamedTuple):
    """Which softmax attentions become linear.

    Attributes:
        linear: Names of the attentions that become linear, in the order in which they were chosen.
        keep: Names of the softmax attentions that stay.
        time: Predicted time of a forward pass, in units of the softmax model's.
        harm: Sum of the harms of the linear attentions.
        path: ``(time, harm)`` after each choice, from ``(1, 0)`` on, beyond the plan too.
    """

    linear: List[str]
    keep: List[str]
    time: float
    harm: float
    path: List[Sequence[float]]


@contextmanager
def put(module: nn.Module, place: str, part: nn.Module) -> Iterator[None]:
    """A context in which a submodule is another one."""
    parent, _, name = place.rpartition('.')
    holder, own = module.get_submodule(parent), module.get_submodule(place)
    setattr(holder, name, part)  # torch 2.1 has no set_submodule
    try:
        yield
    finally:
        setattr(holder, name, own)


@contextmanager
def put_all(module: nn.Module, parts: Mapping[str, nn.Module]) -> Iterator[None]:
    """A context in which several submodules are others, by their names."""
    with ExitStack() as stack:
        for place, part in parts.items():
            stack.enter_context(put(module, place, part))
        yield


class Passes(NamedTuple):
    """What passes of a backbone gave, for all of its attentions at once.

    The calls take about as much memory as a step in which all attentions learn.

    Attributes:
        calls: By the name of an attention, its calls in the batches that are learned from.
        maps: The maps of the batches that measure.
    """

    calls: Dict[str, List[tuple]]
    maps: List[Any]


@torch.no_grad()
def passes_of(
    old: Any, places: Sequence[str], batches: Sequence[Tensor], steps: int, amp: bool = False
) -> Passes:
    """One pass of a backbone for each batch, from which :func:`harm_of` any attention follows."""
    calls: Dict[str, List[tuple]] = {place: [] for place in places}
    device = batches[0].device
    autocast = torch.autocast(device.type, half_dtype(device), enabled=amp)
    with autocast, calls_recorded(old, places) as recorded:
        for images in batches[:-MEASURE] if steps else ():
            old(images)
            for place in places:
                calls[place].append(recorded[place])
    return Passes(calls, [old(images) for images in batches[-MEASURE:]])


def imitating(
    new: Any,
    place: str,
    calls: Sequence[tuple],
    steps: int,
    lr: float,
    amp: bool = False,
) -> nn.Module:
    """A copy of one new attention that has learned the old one's output from its inputs.

    Args:
        new: The backbone with the new attention. It does not change.
        place: Name of the attention.
        calls: The old one's calls in batches, as in :class:`Passes`.
        steps, lr, amp: As in :func:`harm_of`.
    """
    attention = copy.deepcopy(new.get_submodule(place)).train()
    parameters = [p for p in attention.parameters() if p.requires_grad]

    def following(step: int) -> Iterator[tuple]:
        return islice(cycle(calls), step, None)

    def loss_of(call: tuple) -> Tensor:
        return replay_loss(attention, *call)

    fit(attention, parameters, loss_of, following, steps, Schedule(lr=lr, amp=amp), title=place)
    return attention.eval()


def harm_of(
    new: Any,
    old: Any,
    place: str,
    batches: Sequence[Tensor],
    steps: int,
    lr: float,
    passes: Optional[Passes] = None,
    amp: bool = False,
    learned: Optional[Dict[str, nn.Module]] = None,
) -> float:
    """How far the maps of a backbone change if one attention becomes linear.

    A copy of the new attention learns the output of the old one from its inputs, which are computed
    once. Then it takes the old one's place.

    Args:
        new, old: The backbones. They do not change.
        place: Name of the attention.
        batches: Images ``(B, C, H, W)``. The last two batches measure, the others are learned from.
        steps: Number of steps.
        lr: Largest learning rate.
        passes: What :func:`passes_of` gave for these batches. Default: they are made.
        amp: As in :class:`Schedule`. Default: False.
        learned: Gets the copy that has learned, by its name. Default: None.

    Returns:
        The mean squared change of the maps, in units of their mean square.
    """
    calls, wanted = passes or passes_of(old, [place], batches, steps, amp)
    attention = imitating(new, place, calls[place], steps, lr, amp)
    with torch.no_grad(), put(old, place, attention):
        losses = [maps_loss(old(x), maps) for x, maps in zip(batches[-MEASURE:], wanted)]
    harm = torch.stack(losses).mean()
    dist.all_reduce(harm, 'mean')
    if learned is not None:
        learned[place] = attention
    return harm.item()


@torch.no_grad()
def block_costs(
    new: Any, old: Any, places: Sequence[str], images: Tensor, timer: Optional[Callable] = None
) -> Dict[str, Any]:
    """Seconds of both backbones, and of each of the attentions that differ.

    They are medians of interleaved runs on the device of the images.

    Args:
        new, old: The backbones, in eval mode.
        places: Names of the attentions.
        images: Input of the backbones ``(B, C, H, W)``, of the size that matters.
        timer: As in :func:`~mmlaplace.analysis.measuring.interleave`. Default: the clock.

    Returns:
        ``softmax`` and ``linear`` with the seconds of each place, and ``whole`` with those of both.
    """
    with calls_recorded(old, places) as calls:
        old(images)

    def job_of(backbone: Any, place: str) -> Callable[[], Any]:
        attention, (arguments, options, _) = backbone.get_submodule(place), calls[place]
        return lambda: replay(attention, arguments, options)

    kinds = dict(softmax=old, linear=new)
    jobs: Dict[Any, Callable] = {(kind, WHOLE): partial(b, images) for kind, b in kinds.items()}
    jobs.update({(kind, p): job_of(b, p) for kind, b in kinds.items() for p in places})
    runs = interleave(jobs, ROUNDS, images.device, timer=timer)
    return {
        WHOLE: {kind: median(runs[kind, WHOLE]) for kind in kinds},
        **{kind: {p: median(runs[kind, p]) for p in places} for kind in kinds},
    }


def choose(
    harms: Mapping[str, float],
    costs: Mapping[str, Any],
    keep: Optional[int] = None,
    budget: Optional[float] = None,
) -> Plan:
    """Which attentions become linear, by their harms and costs.

    The time that an attention saves is its difference of seconds. All of them are scaled so that
    they add up to the difference of the whole backbones.

    With ``keep``, the N most harmful ones stay softmax. With ``budget``, attentions become linear
    one by one, that with the most time saved per harm first, until the time is in the budget. Then
    those that it does not need turn back, the most harmful first.

    Args:
        harms: The harm of each attention, as :func:`harm_of` gives it.
        costs: As :func:`block_costs` gives them.
        keep: Number of softmax attentions that stay. Default: none.
        budget: Time of the hybrid, in units of the softmax model's. Default: none.

    Raises:
        ValueError: If neither or both are given, for a number or a budget out of range, and for a
            budget that cannot be met, or that the softmax model meets.

    Examples:
        >>> from mmlaplace.linearizing import choose
        >>> costs = dict(
        ...     whole=dict(softmax=10, linear=5),
        ...     softmax=dict(a=4, b=2, c=2), linear=dict(a=1, b=1, c=1))
        >>> plan = choose(dict(a=0.3, b=0.01, c=0.02), costs, budget=0.7)
        >>> plan.linear, plan.keep, plan.time
        (['a'], ['b', 'c'], 0.7)
    """
    places = list(harms)
    if (keep is None) == (budget is None):
        raise ValueError(f'give either keep or budget, got keep={keep} and budget={budget}')
    saved = saved_times(costs)

    def time_of(linear: Sequence[str]) -> float:
        return time_without(saved, linear)

    def harm_of_all(linear: Sequence[str]) -> float:
        return sum(harms[place] for place in linear)

    if keep is not None:
        check_keep(keep, len(places))
        order = sorted(places, key=lambda place: harms[place])
        linear = order[: len(places) - keep]
    else:
        limit = check_reachable(costs, budget)
        order = sorted(
            useful_places(saved), key=lambda p: saved[p] / max(harms[p], 1e-30), reverse=True
        )
        linear = next(order[:n] for n in range(len(order) + 1) if time_of(order[:n]) <= limit)
        for place in sorted(linear, key=lambda p: harms[p], reverse=True):
            others = [one for one in linear if one != place]
            if time_of(others) <= limit:
                linear = others
        if not linear:
            raise ValueError(meets_already(limit))
    steps = [order[:n] for n in range(len(order) + 1)]
    return Plan(
        linear,
        [place for place in places if place not in linear],
        time_of(linear),
        harm_of_all(linear),
        [(time_of(taken), harm_of_all(taken)) for taken in steps],
    )


def meets_already(budget: float) -> str:
    return f'the softmax model itself meets the budget {budget}; give less'


def saved_times(costs: Mapping[str, Any]) -> Dict[str, float]:
    """The time that each attention saves, in units of the softmax model's.

    All of them add up to the difference of the whole backbones.
    """
    whole = costs[WHOLE]['softmax']
    saved = {p: (costs['softmax'][p] - costs['linear'][p]) / whole for p in costs['softmax']}
    # Inside of a model, where caches are cold, an attention takes longer than when it runs alone.
    in_whole, alone = 1 - costs[WHOLE]['linear'] / whole, sum(saved.values())
    if in_whole > 0 and alone > 0:
        saved = {place: share * in_whole / alone for place, share in saved.items()}
    return saved


def time_without(saved: Mapping[str, float], linear: Iterable[str]) -> float:
    """The time of a hybrid, in units of the softmax model's, by what its linear blocks save."""
    return round(1 - sum(saved[place] for place in linear), 9)


def useful_places(saved: Mapping[str, float]) -> List[str]:
    """The attentions that save time."""
    return [place for place in saved if saved[place] > 0]


def smallest_time(costs: Mapping[str, Any]) -> float:
    """The time of the hybrid with all attentions linear that save time."""
    saved = saved_times(costs)
    return time_without(saved, useful_places(saved))


def choose_measured(
    harms: Mapping[str, float],
    costs: Mapping[str, Any],
    measure: Callable[[List[str]], float],
    keep: Optional[int] = None,
    budget: Optional[float] = None,
    planner: Optional[Callable[..., Plan]] = None,
) -> Tuple[Plan, float]:
    """A plan, and the time of the whole hybrid as measured, which meets the budget.

    The sum of the blocks is not quite the time of the whole. If that is above the budget, a plan
    with fewer softmax attentions is measured.

    Args:
        harms, costs, keep, budget: As in :func:`choose`.
        measure: Gives the time of the hybrid that keeps these softmax attentions, in units of the
            softmax model's.
        planner: Gives a plan for ``harms, costs, keep, budget``, such as a :class:`TaskSearch`.
            Default: None, :func:`choose`.

    Raises:
        ValueError: As there, and if no hybrid meets the budget.
    """
    planner = planner or choose
    plan = planner(harms, costs, keep, budget)
    measured = measure(plan.keep)
    while budget is not None and measured > budget:
        smallest = smallest_time(costs)
        if plan.time <= smallest:
            raise ValueError(
                f'the budget {budget} cannot be met at this size: with all blocks linear that save '
                f'time, {len(plan.linear)} of {len(harms)}, the measured time is {measured:.3f}'
            )
        plan = planner(harms, costs, None, max(plan.time * budget / measured, smallest))
        measured = measure(plan.keep)
    return plan, measured


def check_keep(keep: int, count: int) -> None:
    """Raise a ValueError unless a number of kept blocks is below their count, and positive."""
    if not 0 < keep < count:
        raise ValueError(
            f'the number of kept blocks must be from 1 to {count - 1}, as {count} blocks '
            f'with softmax can become linear, got {keep}'
        )


def check_budget(budget: Any) -> float:
    """The budget, or a ValueError unless it is above 0 and at most 1."""
    if not isinstance(budget, (int, float)) or not 0 < budget <= 1:
        raise ValueError(
            "the budget must be above 0 and at most 1, in units of the softmax model's time, got "
            f'{budget}'
        )
    return float(budget)


def check_reachable(costs: Mapping[str, Any], budget: Any) -> float:
    """The budget, or a ValueError if it takes more to have all blocks linear that save time.

    Args:
        costs: As :func:`block_costs` gives them.
        budget: As in :func:`choose`.
    """
    limit, smallest = check_budget(budget), smallest_time(costs)
    if smallest > limit:
        saved = saved_times(costs)
        raise ValueError(
            f'the budget {limit} cannot be met at this size: the smallest that can be reached is '
            f'{smallest:.3f}, with {len(useful_places(saved))} of {len(saved)} blocks linear'
        )
    return limit


def measure_blocks(
    new: Any,
    old: Any,
    places: Sequence[str],
    batches: Callable[[], List[Tensor]],
    sample: Tensor,
    path: Path,
    settings: dict,
    steps: int = 50,
    lr: float = 1e-3,
    timer: Optional[Callable] = None,
    amp: bool = False,
    budget: Optional[float] = None,
    learned: Optional[Dict[str, nn.Module]] = None,
) -> Dict[str, Any]:
    """Harms and costs of all softmax attentions. What an interrupted call measured is kept.

    All harms share the passes of the old backbone. Of several processes, each trains and measures
    with images of its own, and times the blocks; the first's are written.

    Args:
        new, old: The backbones, on one device. They do not change.
        places: Names of the attentions.
        batches: Gives the images for :func:`harm_of`.
        sample: Images for :func:`block_costs`, of the size that matters.
        path: JSON file for the results.
        settings: What its results must have been made with, beside the weights of ``old``.
        steps, lr: As in :func:`harm_of`. Default: 50, 1e-3.
        timer: As in :func:`block_costs`. Default: the clock.
        amp: As in :func:`harm_of`. Default: False.
        budget: As in :func:`choose`. One that cannot be met is refused before harms are measured.
            Default: None.
        learned: Gets the new attentions that have learned, by name. They are kept beside the JSON
            file, in one with the ending ``.pth``. Default: None.

    Returns:
        ``harms`` of :func:`harm_of` by name, ``costs``.

    Raises:
        ValueError: If the file was made with other settings, or cannot be read, and for a budget
            that no hybrid meets.
    """
    settings = dict(
        settings,
        steps=steps,
        lr=lr,
        amp=amp,
        processes=dist.get_world_size(),
        weights_sha256=weights_sha256(old),
    )
    found = of_first_process(read_blocks(path, settings))
    write = dist.master_only(lambda: write_whole(path, json.dumps(found, indent=2) + '\n'))
    machine = describe_machine(sample.device)
    where = f'{machine.get("GPU", machine["CPU"])}, {machine["threads"]} threads'
    name = of_first_process(f'{" x ".join(map(str, sample.shape))} on {where}')
    if name not in found['costs']:
        costs = block_costs(new, old, places, sample, timer)
        found['costs'][name] = of_first_process(costs)
        write()
    if budget is not None:
        check_reachable(found['costs'][name], budget)
    if learned is not None:
        learned.update(read_learned(new, found['harms'], settings, path.with_suffix('.pth')))
    known = found['harms'] if learned is None else learned
    todo = [place for place in places if place not in known]
    images = batches() if todo else []
    passes = passes_of(old, todo, images, steps, amp) if todo else None
    for place in todo:
        harm = harm_of(new, old, place, images, steps, lr, passes, amp, learned)
        found['harms'][place] = harm
        if learned is not None:
            dist.master_only(write_learned)(learned, settings, path.with_suffix('.pth'))
        write()
    return dict(harms=found['harms'], costs=found['costs'][name])


def write_learned(learned: Mapping[str, nn.Module], settings: dict, path: Path) -> None:
    """Write the weights of attentions, by their names in the backbone."""
    weights = {place: attention.state_dict() for place, attention in learned.items()}
    write_state(path, dict(settings=settings, learned=weights))


def read_learned(
    new: Any, places: Iterable[str], settings: dict, path: Path
) -> Dict[str, nn.Module]:
    """Those of these attentions that a file of :func:`write_learned` has.

    Raises:
        ValueError: If it was made with other settings, or cannot be read.
    """
    weights = read_state(path, settings).get('learned', {})
    learned = {}
    for place in weights.keys() & set(places):
        learned[place] = copy.deepcopy(new.get_submodule(place)).eval()
        learned[place].load_state_dict(weights[place])
    return learned


def of_first_process(value: Any) -> Any:
    """The value that the first of all processes has."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def read_blocks(path: Path, settings: dict) -> Dict[str, Any]:
    """The results in a file of :func:`measure_blocks`, or none.

    Raises:
        ValueError: If they were made with other settings, or cannot be read.
    """
    if not path.is_file():
        return dict(settings=settings, harms={}, costs={})
    try:
        found = json.loads(path.read_bytes())
        made_with = found['settings']
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f'{path} cannot be read as the results of a search ({type(error).__name__}); remove it '
            'to start again'
        ) from error
    if made_with != json.loads(json.dumps(settings)):
        raise ValueError(
            f'{path} is of a search with {made_with}, but now the settings are {settings}; take '
            'another --work-dir, or remove that file'
        )
    return found
