"""tools/analysis_tools/soft_term.py: the size of SOFT's attention term, and what decides it."""

import json

import numpy as np
import pytest
import torch
from conftest import ROOT, run_script
from PIL import Image

TOOL = ROOT / 'tools/analysis_tools/soft_term.py'


@pytest.fixture(scope='module')
def textures(tmp_path_factory):
    """Two classes of noise."""
    folder, noise = tmp_path_factory.mktemp('textures'), np.random.default_rng(0)
    for split in ('train', 'val'):
        for label in ('a', 'b'):
            (folder / split / label).mkdir(parents=True)
            for index in range(4):
                pixels = noise.integers(256, size=(50, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / split / label / f'{index}.png')
    return folder


def terms(look: dict, of: str = 'term') -> list:
    return [row[of] for row in look['attentions']]


@pytest.mark.slow
def test_the_term_is_small_for_the_norm_of_landmarks_and_not_for_small_queries(textures, tmp_path):
    out = tmp_path / 'out.json'
    variants = ('as in the paper', 'without the convolution')
    result = run_script(
        TOOL, '--data-root', textures, '--out', out, '--steps', 1, '--batch-size', 4,
        '--archs', 'tiny', '--arch-side', 64, '--variants', *variants, '--weights', tmp_path,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    found = json.loads(out.read_text())
    starts = {(row['query'], row['norm']): row for row in found['starts']}
    usual, queries, norm = (starts[key] for key in ((1, 1), (30, 1), (1, 0.1)))
    # A norm of 0.1 has landmarks near the queries, so both kernels are near 1 instead of 1e-3.
    assert all(n > 100 * u for n, u in zip(terms(norm), terms(usual)))
    assert all(q < u for q, u in zip(terms(queries), terms(usual)))
    assert all(row['landmark_norm'] < 0.5 for row in norm['attentions'])
    assert len(found['sizes']['tiny']) == 6  # blocks of the first three stages
    assert list(found['training']) == list(variants)
    looks = [found['training'][name]['looks'] for name in variants]
    assert [look['step'] for look in looks[0]] == [0, 1]
    assert looks[0][0]['attentions'][0]['local'] > 0 and 'local' not in looks[1][0]['attentions'][0]
    assert torch.load(tmp_path / 'as-in-the-paper.pth', weights_only=True)
    assert 'term / convolution' in result.stdout


def test_missing_data_names_the_command(tmp_path):
    result = run_script(TOOL, '--data-root', tmp_path / 'none', '--out', tmp_path / 'a.json')
    assert result.returncode == 2
    assert '--tasks textures makes it' in ' '.join(result.stderr.split())
