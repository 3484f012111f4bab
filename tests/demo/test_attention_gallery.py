"""The gallery has a picture of every attention, and says which weights are random."""

import json
import re
import sys

import attention_gallery
import pytest
import torch
from conftest import ROOT, registered
from explorer.models import untrained
from mmengine.registry import MODELS
from PIL import Image

from mmlaplace.analysis.attention_rows import influence_map
from mmlaplace.comparison.attention_study import contenders
from mmlaplace.models import QKVAttention, SoftmaxAttention


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, 'argv', ['attention_gallery.py', *map(str, arguments)])
    attention_gallery.main()


@pytest.fixture
def photo(tmp_path):
    Image.linear_gradient('L').resize((64, 64)).save(tmp_path / 'photo.png')
    return tmp_path / 'photo.png'


@pytest.fixture
def work_dir(tmp_path):
    """A comparison in which one attention was trained."""
    run = tmp_path / 'compared/laplacianformer/textures/SOFTAttention_0'
    (run / 'textures').mkdir(parents=True)
    backbone = MODELS.build(untrained('SOFTAttention', 'laplacianformer', 64).backbone)
    weights = {f'backbone.{name}': value for name, value in backbone.state_dict().items()}
    torch.save(dict(state_dict=weights), run / 'textures/epoch_4.pth')
    settings = dict(
        attention='SOFTAttention', attn_cfg=contenders()['SOFTAttention'], seed=0,
        host='laplacianformer', study='textures', phases=[dict(data='textures', side=64, epochs=4)],
    )  # fmt: skip
    (run / 'result.json').write_text(json.dumps(dict(settings=settings)))
    return tmp_path / 'compared'


def test_a_picture_for_each_attention_and_a_page(photo, work_dir, tmp_path, monkeypatch, capsys):
    names = ['SOFTAttention', 'KernelAttention, Laplacian', 'XCAttention']
    command = [
        '--image', photo, '--compared', work_dir, '--size', 64, '--attentions', *names,
        '--pictures', tmp_path / 'docs/pictures', '--out', tmp_path / 'docs/gallery.md',
    ]  # fmt: skip
    run(monkeypatch, *command)
    page = (tmp_path / 'docs/gallery.md').read_text()
    assert '1 of the 3 attentions were trained' in page
    rows, others = page.split('## Attentions without a matrix')
    for part, name, trained in ((rows, *n) for n in zip(names[:2], (True, False))):
        (cell,) = (cell for cell in part.split(' | ') if f'**{name}**' in cell)
        assert ('random weights' in cell) != trained
        assert 'entropy' in cell
    assert '**XCAttention**<br>*random weights*' in others
    for name in names:
        file = tmp_path / f'docs/pictures/{name.replace(", ", "-")}.png'
        assert f'](pictures/{file.name})' in page
        assert len(Image.open(file).getcolors()) > 10
        assert file.stat().st_size < 35_000  # 43 of them are less than 1.5 MB
    assert 'and 3 pictures' in capsys.readouterr().out
    with pytest.raises(SystemExit):
        run(monkeypatch, *command)
    assert '--force replaces it' in capsys.readouterr().err


@pytest.mark.parametrize(
    'wrong, told',
    [
        (('--point', 1.5, 0.5), 'the query x=1.5 is outside of the image'),
        (('--stage', 7), 'there is no stage 7; choose 0 to 3'),
        (('--image', 'nowhere.png'), 'nowhere.png'),
    ],
)
def test_what_is_not_there_is_quoted(wrong, told, photo, tmp_path, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(
            monkeypatch, '--image', photo, '--compared', tmp_path, '--out', tmp_path / 'page.md',
            '--attentions', 'XCAttention', 'SOFTAttention', *wrong,
        )  # fmt: skip
    assert told in capsys.readouterr().err
    assert not (tmp_path / 'page.md').exists()


def test_the_influence_of_tokens_is_the_norm_of_the_derivative():
    attention = SoftmaxAttention(16, 2, (3, 4), lepe_kernel=3).double()
    x = torch.randn(1, 12, 16).double()
    found = influence_map(attention, x, (3, 4), place=(1, 2))
    whole = torch.autograd.functional.jacobian(lambda x: attention(x, (3, 4))[0, 6], x)
    expected = whole.square().sum((0, 1, 3)).sqrt().view(3, 4)
    torch.testing.assert_close(found, expected)


def test_the_published_gallery_is_whole_and_small():
    page = (ROOT / 'docs/gallery.md').read_text()
    shown = set(re.findall(r'!\[([^]]*)]\((images/gallery/[^)]*)\)', page))
    pictures = {ROOT / 'docs' / path for _, path in shown}
    assert pictures == set((ROOT / 'docs/images/gallery').iterdir())
    assert sum(picture.stat().st_size for picture in pictures) < 1.5e6
    assert {name for name, _ in shown} <= set(contenders())
    assert set(registered(QKVAttention)) <= set(contenders()) | {'WindowAttention'}
    assert (ROOT / 'docs/images/attention_explorer.png').stat().st_size < 300_000
    assert not any(set('/\\:') & set(name) for name in contenders())  # names of files
