"""The study of Laplacian forms asks for what it says, and its tables have what the log has."""

import sys

import pytest
import torch
from conftest import load_tool
from mmengine.registry import MODELS


@pytest.fixture(scope='module')
def study():
    return load_tool('studies/study_laplacian.py')


def run_of(attention, seed, small, task='textures', keep=0):
    names = dict(task=task, attention=attention, variant='harm', keep=keep, seed=seed)
    return dict(settings=names, swapped=30.0, score=dict(small=small, large=40.0))


SOFTMAX = dict(
    settings=dict(task='textures', variant='softmax', steps=1), score=dict(small=60.0, large=50.0)
)


@pytest.mark.parametrize('num_heads', [2, 1])
def test_each_form_is_run_once_and_can_be_built(study, num_heads):
    forms = study.forms(num_heads)
    assert len(set(forms)) == len(forms)
    for attention, _ in forms:
        cfg = study.linear_cfg(attention)
        MODELS.build(dict(cfg, embed_dims=64, num_heads=num_heads, input_resolution=(8, 8)))
    tenths = [study.linear_cfg(a)['bandwidth'] for a, _ in forms if 'bandwidth' in a]
    assert 64 / num_heads / 10 in tenths


def test_a_table_has_scores_of_the_tasks_that_were_run(study):
    results = [SOFTMAX, *(run_of(study.ROWS, seed, 58.0 + 2 * seed) for seed in range(3))]
    results += [run_of(study.TODAY, 0, 44.0), run_of(study.ROWS, 0, 1.0, keep=1)]
    lines = study.table('parts', 2, results).splitlines()
    assert '|  | textures: top-1 (%) |' in lines
    assert '| softmax | 60.0; 50.0 |' in lines
    assert '| **rows, landmarks of queries** | 30.0 → 60.0 ± 5.0; 40.0 |' in lines
    assert (
        "| the paper's form: whitened, landmarks of keys | 30.0 → 44.0; 40.0 (1 of 3 seeds) |"
        in lines
    )
    assert '| not normalised | not run |' in lines
    kept = study.table('kept', 2, results)
    assert '| one block | 30.0 → 1.0; 40.0 (1 of 3 seeds) |' in kept


def test_farthest_tokens_are_far_from_those_before(study):  # which imports them
    tokens = torch.tensor([[0.0, 0.1], [5.0, 0.0], [0.2, 0.0], [0.0, -4.0], [0.1, 0.0]])
    farthest_tokens = sys.modules['hybrids.farthest'].farthest_tokens
    index = farthest_tokens(tokens[None, None], 3)
    assert index.flatten().tolist() == [2, 1, 3]
