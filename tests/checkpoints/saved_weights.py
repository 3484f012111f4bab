"""Weights in files, and whether they are those of another."""

import pytest
import torch

from mmlaplace.checkpoints import load_weights, read_state_dict


def same(module, weights) -> bool:
    own = module.state_dict()
    return set(own) == set(weights) and all(torch.equal(own[k], weights[k]) for k in own)


def save(path, weights, prefix='', container='state_dict', **beside):
    content = {prefix + name: value for name, value in weights.items()}
    torch.save({container: content, **beside} if container else content, path)
    return str(path)


def assert_refused(module, file, message, **options):
    """The weights are refused with a message, and the module stays as it was."""
    before = {k: v.clone() for k, v in module.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_weights(module, file, **options)
    assert same(module, before)


def assert_unreadable(source, message):
    with pytest.raises((ValueError, OSError, ImportError), match=message):
        read_state_dict(source)


def without(weights, name):
    return {k: v for k, v in weights.items() if not k.startswith(name)}
