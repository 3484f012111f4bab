"""The gallery has a picture of every attention, and says which weights are random."""

import re

import pytest
import torch
from conftest import ROOT, output_of, refusal_of
from PIL import Image

from mmlaplace.analysis.attention_rows import influence_map
from mmlaplace.lab.side_by_side.attention_study import candidates
from mmlaplace.models import SoftmaxAttention


@pytest.fixture
def command(tmp_path, monkeypatch):
    Image.linear_gradient('L').resize((64, 64)).save(tmp_path / 'photo.png')
    monkeypatch.chdir(tmp_path)
    return (
        ROOT / 'demo/attention_gallery.py',
        '--image',
        'photo.png',
        '--compared',
        'nowhere',
        '--image-size',
        64,
        '--pictures',
        'docs/pictures',
        '--out',
        'docs/gallery.md',
        '--attentions',
    )


def test_a_picture_for_each_attention_and_a_page(command, tmp_path):
    names = ['SOFTAttention', 'KernelAttention, Laplacian', 'XCAttention']
    output_of(*command, *names)
    page = (tmp_path / 'docs/gallery.md').read_text()
    rows, others = page.split('## Attentions without a matrix')
    for name in names[:2]:
        (cell,) = (cell for cell in rows.split(' | ') if f'**{name}**' in cell)
        assert 'random weights' in cell and 'entropy' in cell
    assert '**XCAttention**<br>*random weights*' in others
    for name in names:
        file = tmp_path / f'docs/pictures/{name.replace(", ", "-")}.png'
        assert f'](pictures/{file.name})' in page
        assert len(Image.open(file).getcolors()) > 10
    assert '--force replaces it' in refusal_of(*command, *names)


def test_a_place_that_is_not_there_is_quoted(command, tmp_path):
    told = refusal_of(*command, 'XCAttention', 'SOFTAttention', '--stage', 7)
    assert 'there is no stage 7; choose 0 to 3' in told
    assert not (tmp_path / 'docs/gallery.md').exists()


@pytest.mark.parametrize('prefix', [0, 1])  # which has no place on the map
def test_the_influence_of_tokens_is_the_norm_of_the_derivative(prefix):
    options = dict(num_prefix_tokens=1) if prefix else dict(lepe_kernel=3)
    attention = SoftmaxAttention(16, 2, (3, 4), **options).double()
    x = torch.randn(1, 12 + prefix, 16).double()
    found = influence_map(attention, x, (3, 4), place=(1, 2))
    whole = torch.autograd.functional.jacobian(lambda x: attention(x, (3, 4))[0, 6 + prefix], x)
    expected = whole.square().sum((0, 1, 3)).sqrt()[prefix:].view(3, 4)
    torch.testing.assert_close(found, expected)


def test_the_published_gallery_is_whole_and_small():
    page = (ROOT / 'docs/gallery.md').read_text()
    shown = set(re.findall(r'!\[([^]]*)]\((images/gallery/[^)]*)\)', page))
    pictures = {ROOT / 'docs' / path for _, path in shown}
    assert pictures == set((ROOT / 'docs/images/gallery').iterdir())
    assert sum(picture.stat().st_size for picture in pictures) < 1.5e6
    assert {name for name, _ in shown} <= set(candidates())
