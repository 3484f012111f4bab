"""A hook gives Performer other features while it trains."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import HOOKS

from mmlaplace.engine import RedrawFeaturesHook
from mmlaplace.models import PerformerAttention


def test_features_are_drawn_again_after_so_many_iterations():
    model = torch.nn.Sequential(PerformerAttention(32, 2, (7, 7)), torch.nn.Linear(2, 2))
    hook = HOOKS.build(dict(type='RedrawFeaturesHook', interval=3))
    runner, seen = SimpleNamespace(model=model, iter=0), []
    for runner.iter in range(7):
        seen.append(model[0].projection_matrix.clone())
        hook.after_train_iter(runner, runner.iter)
    changes = [not torch.equal(a, b) for a, b in zip(seen, seen[1:])]
    assert changes == [False, False, True, False, False, True]
    with pytest.raises(ValueError, match='at least 1, got 0'):
        HOOKS.build(dict(type='RedrawFeaturesHook', interval=0))


def draw(rank, store):
    """One of two processes of a training, each of which has a seed of its own."""
    torch.distributed.init_process_group('gloo', f'file://{store}', rank=rank, world_size=2)
    torch.manual_seed(rank)
    model = torch.nn.Sequential(PerformerAttention(32, 2, (7, 7)))
    hook = RedrawFeaturesHook(interval=1)
    hook.after_train_iter(SimpleNamespace(model=model, iter=0), 0)
    drawn = [None, None]
    torch.distributed.all_gather_object(drawn, model[0].projection_matrix)
    assert torch.equal(*drawn)
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_all_processes_of_a_training_get_the_same_features(tmp_path):
    torch.multiprocessing.spawn(draw, (tmp_path / 'store',), nprocs=2)
