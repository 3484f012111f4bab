"""Fields of a frame that exclude each other, and names in the registry."""

import mmengine.registry
import pytest
from mmengine.registry import Registry

from mmlaplace.models import Frame


@pytest.mark.parametrize(('frame', 'quoted'), [
    (dict(rope_form='full'), "got 'full'"), (dict(rope_on='values'), "got 'values'"),
    (dict(sr_ratio=2.0), 'got 2.0'), (dict(lepe_kernel=-1), 'got -1'),
    (dict(second_lepe_kernel=4), 'got 4'),
    (dict(second_lepe_kernel=3, sr_ratio=2), 'got sr_ratio=2'),
    (dict(sr_ratio=2, qkv='qk'), "got qkv='qk'"),
    (dict(sr_ratio=2, rope=True), 'got sr_ratio=2 and rope=True'),
    (dict(key_positions=True, qkv='shared_qk'), "got qkv='shared_qk'; set key_positions=False"),
])  # fmt: skip
def test_fields_that_exclude_each_other_are_quoted(frame, quoted):
    with pytest.raises(ValueError, match=quoted):
        Frame(**frame)


def test_names_of_ours_are_ours_alone():
    """All plugins of OpenMMLab share a registry: the later of two modules of one name wins."""
    for toolbox in ('mmpretrain', 'mmdet', 'mmseg'):
        pytest.importorskip(f'{toolbox}.models')

    def names(registry):
        own = set(registry.module_dict)
        return own.union(*(names(child) for child in registry.children.values()))

    roots = [value for value in vars(mmengine.registry).values() if isinstance(value, Registry)]
    for root in roots:
        ours = {name for name, cls in root.module_dict.items() if cls.__module__.startswith('mmla')}
        for child in root.children.values():
            assert not ours & names(child), child.scope
