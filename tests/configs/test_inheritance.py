"""A config shows its model: it inherits little, and what it inherits has no backbone."""

import ast
import re

from conftest import ROOT
from mmengine.config import Config

CONFIGS = ROOT / 'configs'
BASES = sorted(p for p in CONFIGS.rglob('*.py') if '_base_' in p.relative_to(ROOT).parts)
LEAVES = sorted(set(CONFIGS.rglob('*.py')) - set(BASES))
# DeepSpeed's wrapper takes no clip_grad, and what is inherited can be removed in no other way.
DELETING = ['laplacianformer-huge_8xb128-deepspeed_in1k']


def bases(path) -> list:
    """The files that a config names in ``_base_``."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and node.targets[0].id == '_base_':
            named = ast.literal_eval(node.value)
            named = [named] if isinstance(named, str) else named
            return [(path.parent / base).resolve() for base in named]
    return []


def inherited(path) -> set:
    """All files that a config inherits from."""
    return set().union(*({base} | inherited(base) for base in bases(path)))


def levels(path) -> int:
    """The files on the longest way from a config to a base that has none, both counted."""
    return 1 + max(map(levels, bases(path)), default=0)


def test_config_has_three_levels_at_most():
    # As OpenMMLab's guide to configs recommends.
    assert [path.stem for path in LEAVES if levels(path) > 3] == []


def test_leaf_inherits_from_no_leaf():
    assert [path.stem for path in LEAVES if inherited(path) - set(BASES)] == []


def test_every_base_is_inherited():
    used = set().union(*map(inherited, LEAVES))
    assert [str(path.relative_to(CONFIGS)) for path in BASES if path not in used] == []


def test_leaf_deletes_nothing_that_it_inherits():
    assert [path.stem for path in LEAVES if '_delete_' in path.read_text()] == DELETING


def test_leaf_names_its_backbone_and_its_size():
    backbone = re.compile(r"backbone=dict\(\s*type='\w+',\s*arch='[\w-]+'")
    # Sequences have one encoder, which its task sizes, so their leaves name an attention.
    named = {True: re.compile(r"attn_cfg=dict\(\s*type='\w+'"), False: backbone}
    lacking = [
        p.stem
        for p in LEAVES
        if not named['lra' in p.relative_to(CONFIGS).parts].search(p.read_text())
    ]
    assert lacking == []


def test_base_of_a_task_has_no_backbone():
    # Sequences have one encoder, which is no choice of a leaf.
    models = [p for p in BASES if p.parent.name == 'models' and 'lra' not in p.parts]
    assert models
    assert [path.name for path in models if 'backbone' in Config.fromfile(path).model] == []


def test_no_base_is_another_packages():
    for path in CONFIGS.rglob('*.py'):
        assert not re.search(r'\w::\w', path.read_text()), path
