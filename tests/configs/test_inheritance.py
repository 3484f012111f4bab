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


def test_leaves_inherit_bases_alone_through_three_levels_and_every_base_serves():
    # Three as OpenMMLab's guide to configs recommends.
    assert [path.stem for path in LEAVES if levels(path) > 3] == []
    assert [path.stem for path in LEAVES if inherited(path) - set(BASES)] == []
    used = set().union(*map(inherited, LEAVES))
    assert [str(path.relative_to(CONFIGS)) for path in BASES if path not in used] == []
    assert [path.stem for path in LEAVES if '_delete_' in path.read_text()] == DELETING
    for path in CONFIGS.rglob('*.py'):  # no base is of another package
        assert not re.search(r'\w::\w', path.read_text()), path


def test_leaf_names_its_backbone_and_its_size_and_no_base_does():
    backbone = re.compile(r"backbone=dict\(\s*type='\w+',\s*arch='[\w-]+'")
    # Sequences have one encoder, which its task sizes, so their leaves name an attention.
    named = {True: re.compile(r"attn_cfg=dict\(\s*type='\w+'"), False: backbone}
    of_sequences = {p: 'lra' in p.relative_to(CONFIGS).parts for p in LEAVES + BASES}
    lacking = [p.stem for p in LEAVES if not named[of_sequences[p]].search(p.read_text())]
    assert lacking == []
    models = [p for p in BASES if p.parent.name == 'models' and not of_sequences[p]]
    assert models
    assert [path.name for path in models if 'backbone' in Config.fromfile(path).model] == []
