"""Whether the state of an optimizer is one of this run's."""

from typing import Any, List, Mapping

from mmengine.optim import OptimWrapper

from .errors import FirstCheckError


def check_optimizer(wrapper: Any, checkpoint: Mapping[str, Any], place: str) -> None:
    """Compare the optimizer of a run with the one of the run that it goes on from.

    torch refuses other groups of parameters, but after the weights are loaded, and it names neither
    the file nor the fix.

    Args:
        wrapper: The optimizer wrapper. Only one of mmengine's ``OptimWrapper`` is compared.
        checkpoint: The content of the file.
        place: Its path or address, for messages.

    Raises:
        FirstCheckError: If they have other numbers of parameters, or other groups of these.
    """
    state = checkpoint.get('optimizer')
    if not isinstance(wrapper, OptimWrapper) or not isinstance(state, dict):
        return
    stored, own = _sizes(state.get('param_groups') or []), _sizes(wrapper.optimizer.param_groups)
    if not stored or stored == own:
        return
    raise FirstCheckError(
        f'{place} cannot be resumed: its optimizer holds {_counts(stored)}, and that of this run '
        f'{_counts(own)}. Constructors differ in whether they hold frozen parameters, and how they '
        'group others; resume with the optim_wrapper of that run, or start a new run from its '
        f'weights: leave out --resume, and add --cfg-options load_from={place}'
    )


def _sizes(groups: List[dict]) -> List[int]:
    """The numbers of parameters of groups."""
    return [len(group['params']) for group in groups]


def _counts(sizes: List[int]) -> str:
    """The number of parameters and groups in words."""
    groups = 'one group' if len(sizes) == 1 else f'{len(sizes)} groups'
    return f'{sum(sizes)} parameters in {groups}'
