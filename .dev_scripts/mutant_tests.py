"""Which tests run for a mutant."""

import re
from collections import Counter
from pathlib import Path
from typing import Iterable, List, Tuple

from mutants import ROOT, Mutant, relative

# The tests that run for a file: those of the longest path that begins it, the quickest first.
TESTS = {
    'mmlaplace/ops': (
        'test_docstrings.py',
        'ops',
        'models/test_laplacian_attention.py',
        'models/test_graphs.py',
        'test_check.py',
    ),
    'mmlaplace/engine': (
        'test_docstrings.py',
        'engine',
        'tools/test_faults.py',
        'models/test_backbones.py',
        'models/test_options.py',
    ),
    'mmlaplace/models': ('test_docstrings.py', 'models/test_attn_cfg.py', 'models/test_options.py'),
    'mmlaplace/models/attentions': (
        'test_docstrings.py',
        'models/test_laplacian_attention.py',
        'models/test_soft_attention.py',
        'models/test_pola_attention.py',
        'models/test_authors_attentions.py',
        'models/test_classic_attentions.py',
        'models/test_vision_attentions.py',
        'models/test_bad_options.py',
        'models/test_memory_of_attentions.py',
        'models/test_frame.py',
        'models/test_attentions.py',
        'models/test_attn_cfg.py',
        'models/test_golden.py',
        'engine/test_optimizers.py',
        'models/test_options.py',
    ),
    'mmlaplace/models/layers': (
        'test_docstrings.py',
        'models/test_layers.py',
        'models/test_frame.py',
        'models/test_soft_attention.py',
        'models/test_pola_attention.py',
        'models/test_attentions.py',
        'models/test_memory_of_attentions.py',
        'models/test_golden.py',
        'models/test_bad_options.py',
        'models/test_fast_paths.py',
        'models/test_plain_exports.py',
        'models/test_options.py',
        'models/test_backbones.py',
    ),
    'mmlaplace/models/backbones': (
        'test_docstrings.py',
        'models/test_attn_cfg.py',
        'models/test_unchanged.py',
        'models/test_options.py',
        'models/test_backbones.py',
        'models/test_golden.py',
        'engine/test_optimizers.py',
        'engine/test_checkpoint_fit.py',
        'engine/test_checkpoint_resizing.py',
    ),
    'mmlaplace/lab/lra': ('test_docstrings.py', 'lab/lra'),
    'mmlaplace/timm': ('test_docstrings.py', 'models/test_timm.py'),
    'mmlaplace/analysis': ('test_docstrings.py', 'analysis', 'tools'),
    'mmlaplace/checkpoints': ('test_docstrings.py', 'engine', 'models/test_options.py'),
    'mmlaplace/commands': ('test_docstrings.py', 'test_model_list.py', 'test_commands.py', 'tools'),
    'mmlaplace/lab/side_by_side': ('test_docstrings.py', 'lab/side_by_side'),
    'mmlaplace/deployment': ('test_docstrings.py', 'deployment', 'tools', 'ops'),
    'mmlaplace/linearizing': ('test_docstrings.py', 'models/test_linearizing.py'),
    'mmlaplace/lab/mini_datasets': ('test_docstrings.py', 'lab/mini_datasets'),
    'mmlaplace/lab/probes': ('test_docstrings.py', 'lab/probes'),
    'mmlaplace/lab/reproduction': ('test_docstrings.py', 'lab/reproduction'),
    'mmlaplace/writing.py': ('test_docstrings.py', 'test_writing.py', 'engine', 'tools'),
    'tools': ('tools', 'lab', 'analysis'),
}
TESTS['mmlaplace/models/pyramid'] = TESTS['mmlaplace/models/backbones']
# What takes long and sees nothing that others of these do not: compilation and large images.
LEFT_OUT = 'not compile and not 1333'
MARKERS = 'not (build or sanitizer or wheel or docs or training or slow)'
# Most tests of tools and training start Python, so the nearest of them run although they are slow.
WITH_SLOW = 'not (build or sanitizer or wheel or docs or training)'


def tests_of(file: str) -> List[str]:
    """The tests that run for a file."""
    place = max((place for place in TESTS if file.startswith(place)), key=len)
    paths = [f'tests/{name}' for name in TESTS[place] if (ROOT / 'tests' / name).exists()]
    # A file's own tests, where they are named after it, come first.
    stem = Path(file).stem.strip('_').split('_')[0]
    return sorted(paths, key=lambda path: stem not in Path(path).stem)


def rounds_of(mutant: Mutant) -> List[Tuple[List[str], str]]:
    """Tests that run one after the other, each with its choice of markers."""
    tests = tests_of(mutant.file)
    if not mutant.means:
        # The first three alone before the others, which take seconds to collect.
        return [(tests[:3], MARKERS), (tests[3:], MARKERS)]
    quick = ('mmlaplace/models', 'mmlaplace/ops', 'mmlaplace/lab/lra')
    near = nearest_tests(mutant.file)
    if mutant.file.startswith('mmlaplace/models'):
        tests = [*tests, 'tests/models', 'tests/engine']
    area = [path for path in files_of(tests) if path not in near]
    return [(near, MARKERS if mutant.file.startswith(quick) else WITH_SLOW), (area, MARKERS)]


def files_of(paths: Iterable[str]) -> List[str]:
    """The files of tests that paths from the root name, or have in them."""
    found = {}
    for path in paths:
        place = ROOT / path
        inside = sorted(place.glob('test_*.py')) if place.is_dir() else [place]
        found.update(dict.fromkeys(map(relative, inside)))
    return list(found)


def nearest_tests(file: str) -> List[str]:
    """The three test files that name most often a file or what it has."""
    defined = re.findall(r'^(?:class|def) ([A-Za-z]\w+)', (ROOT / file).read_text(), re.M)
    telling = [name for name in defined if '_' in name or not name.islower()]
    names = '|'.join({Path(file).stem, *telling})
    mentions = Counter(
        {
            relative(path): len(re.findall(rf'\b(?:{names})\b', path.read_text()))
            for path in (ROOT / 'tests').rglob('test_*.py')
        }
    )
    return [path for path, count in mentions.most_common(3) if count]
