"""A hook gives Performer other features while it trains."""

from types import SimpleNamespace

import pytest
import torch
from mmengine.registry import HOOKS

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


def test_an_interval_of_none_is_refused():
    with pytest.raises(ValueError, match='at least 1, got 0'):
        HOOKS.build(dict(type='RedrawFeaturesHook', interval=0))
