"""``python -m mmlaplace verify``: from a server to a verdict, of random weights and few images."""

import json
import re

import pytest
import torch
from conftest import refusal_of, run_script
from test_checkpoint_sources import website  # noqa: F401, a fixture
from test_released_weights import authors, put, random_weights  # noqa: F401, a fixture

from mmlaplace.checkpoints import PUBLISHED
from mmlaplace.commands import verify
from mmlaplace.model_zoo import read_models

NAME = 'mobilevitv2-050'


@pytest.fixture
def images(tmp_path, noise_images):
    noise_images(tmp_path / 'val', 64)
    return tmp_path / 'val'


@pytest.mark.slow
def test_a_file_of_a_server_is_downloaded_loaded_tested_and_compared(authors, images, tmp_path):  # noqa: F811
    pytest.importorskip('mmpretrain')
    torch.manual_seed(0)
    file = put(authors, PUBLISHED['mobilevitv2_050'].weights, random_weights('mobilevitv2_050'))
    out = tmp_path / 'row.json'
    options = ('--data', images, '--out', out, '--workers', 0)
    result = run_script('mmlaplace', 'verify', NAME, *options)
    assert result.returncode == 0, result.stderr
    row = json.loads(out.read_text())
    config = next(m for m in read_models() if m.metadata.get('Published as') == 'mobilevitv2_050')
    assert row['config'] == config.name and row['images'] == 4
    assert row['published']['Top 1 Accuracy'] == config.metadata['Published']['Top 1 Accuracy']
    assert row['bytes'] == file.stat().st_size and len(row['sha256']) == 64
    assert 'missing 0, unexpected 0' in row['matched']
    assert row['licence'].startswith('Apple sample code')
    assert 0 <= row['measured']['Top 1 Accuracy'] <= 100
    assert row['verdict'] == 'none: not the whole validation set'
    score = row['published']['Top 1 Accuracy']
    assert f'published {score}, measured ' in result.stdout and 'of 4 images' in result.stdout
    # A second run replaces nothing.
    assert f'{out} is there already' in refusal_of('mmlaplace', 'verify', NAME, *options)


def test_a_verdict_needs_all_images_and_each_score_within_its_tolerance():
    published = {'box AP': 46.7, 'mask AP': 42.2}
    near, far = {'box AP': 46.6, 'mask AP': 42.3}, {'box AP': 46.6, 'mask AP': 41.9}
    assert verify.verdict(published, near, True) == 'verified'
    assert verify.verdict(published, far, True) == 'differs'
    assert verify.verdict(published, near, False).startswith('none')


def test_names_of_weights_and_of_configs_lead_to_the_same_test():
    by_weights, by_config = verify.find('mlla-tiny'), verify.find('mlla-tiny_8xb128_in1k')
    assert by_weights == by_config and by_weights[1] == 'mlla_tiny'
    model, weights = verify.find('mask-rcnn_mlla-tiny_fpn_ms-1x_coco')
    assert (model.task, weights) == ('detection', model.name)
    assert verify.data_set(model) == 'coco'


def test_the_data_of_the_user_takes_the_place_of_the_configs(tmp_path):
    (tmp_path / 'annotations').mkdir()
    model, _ = verify.find('mask-rcnn_mlla-tiny_fpn_ms-1x_coco')
    cfg = verify.config_of(model, tmp_path, 32, 0)
    assert cfg.test_evaluator.ann_file == str(tmp_path / 'annotations/instances_val2017.json')
    assert cfg.test_dataloader.dataset.data_root == str(tmp_path)
    assert cfg.test_dataloader.persistent_workers is False


@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        (('mlla-tyni',), "no released weights of 'mlla-tyni' are known"),
        (('laplacianformer-tiny_8xb128_in1k',), 'no released weights|released no weights'),
    ],
)
def test_what_cannot_be_verified_is_refused_in_a_sentence(words, sentence, tmp_path, images):
    out = tmp_path / 'row.json'
    said = refusal_of('mmlaplace', 'verify', *words, '--data', images, '--out', out)
    assert re.search(sentence, said) and said.count('\n') == 1
    assert not out.exists()


def test_data_that_is_not_there_is_refused(tmp_path):
    (tmp_path / 'empty').mkdir()
    for data, sentence in ((tmp_path / 'no', 'there is no folder'), (tmp_path / 'empty', '1,000')):
        out = tmp_path / 'row.json'
        said = refusal_of('mmlaplace', 'verify', NAME, '--data', data, '--out', out)
        assert sentence in said
