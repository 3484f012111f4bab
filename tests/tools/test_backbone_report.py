"""The report renders what the benchmark of backbones wrote published figures."""

import json
import sys

import pytest
from PIL import Image

from mmlaplace.comparison import backbone_contenders, backbone_report, published_top1
from mmlaplace.model_zoo import read_models


def synthetic():
    """A result with two contenders that have a published top-1."""
    names, row = ['laplacianformer-tiny', 'mmpretrain:ResNet-50'], dict(mode='eager', MB=10.0)
    row.update({'failure': '', 'runs': 3, 'min ms': 40.0})
    rows = [
        {**row, 'contender': name, 'side': side, 'batch': 8, 'median ms': ms,
         'ms per image': ms / 8, 'images per second': 8e3 / ms}
        for side, ms in ((224, 80.0), (448, 320.0))
        for name, ms in zip(names, (ms, 2 * ms))
    ]  # fmt: skip
    return dict(
        machine=dict(CPU='a CPU', threads='2'), train=False, base=names[0], modes=['eager'],
        sizes=[[224, 8], [448, 8]], contenders=[*names, 'timm:fastvit_t8'], rows=rows,
        failures={'timm:fastvit_t8': 'no timm'}, exponents={},
        models={name: dict(parameters=12_000_000) for name in names},
    )  # fmt: skip


@pytest.mark.slow
def test_the_report_renders_markdown_and_plots_from_the_json(monkeypatch, tmp_path, capsys):
    tool, path, plot = (
        backbone_report,
        tmp_path / 'a.json',
        tmp_path / 'top1.png',
    )
    path.write_text(json.dumps(synthetic()))
    options = ['--markdown', '--base', 'mmpretrain:ResNet-50', '--plot-top1', str(plot)]
    monkeypatch.setattr(sys, 'argv', ['backbone_report.py', str(path), *options])
    tool.main()
    printed = capsys.readouterr().out
    rows = [
        [cell.strip() for cell in line.strip().strip('|').split('|')]
        for line in printed.splitlines()
        if line.startswith('| laplacian') or line.startswith('| mmpretrain')
    ]
    ours = ['laplacianformer-tiny', '12.0', '81.4', '10.0', '100.0', '0.50', '10', '']
    assert rows[0] == ours
    assert rows[1][5] == '1.00'
    assert rows[2][2] == '-'  # its top-1 is for another size
    assert '| timm:fastvit_t8' in printed and 'no timm' in printed
    assert 'top1.png is without' in printed and 'FastViT-T8' in printed
    assert min(Image.open(plot).size) > 300

    path.write_text('{"arch": "tiny"}')
    monkeypatch.setattr(sys, 'argv', ['backbone_report.py', str(path)])
    with pytest.raises(SystemExit):
        tool.main()
    assert 'measure again' in capsys.readouterr().err


def test_the_exponent_needs_sizes_of_one_batch():
    exponents, rows = (
        backbone_report.exponents,
        synthetic()['rows'],
    )
    assert exponents(rows) == {
        name: {'eager': pytest.approx(1.0)}  # of four times the pixels in four times the time
        for name in ('laplacianformer-tiny', 'mmpretrain:ResNet-50')
    }
    assert exponents([{**row, 'batch': row['side']} for row in rows]) == {}


@pytest.mark.slow
def test_the_plot_of_top1_has_what_was_measured_at_the_published_size():
    tool, result = backbone_report, synthetic()
    points = tool.top1_points(result, 'eager')
    assert points == {'laplacianformer-tiny': (100.0, 8), 'mmpretrain:ResNet-50': (50.0, 8)}
    assert {'ResNet-18', 'Swin-T', 'FastViT-T8'} <= set(tool.not_measured(result))
    assert 'ResNet-50' not in tool.not_measured(result)


def test_published_figures_have_a_source_and_name_contenders():
    contenders, top1 = (
        backbone_contenders,
        published_top1,
    )
    published = top1.published()
    for name, paper in published.items():
        assert 60 < paper.top1 < 90 and paper.side % 32 == 0
        assert paper.source and paper.recipe
        assert paper.ours == paper.source.startswith('configs/')
        if not name.startswith('timm:'):
            try:
                contenders.find(name)
            except ImportError as error:
                pytest.skip(str(error))
    zoo = {model.name: model.metadata for model in read_models()}
    tiny = zoo['laplacianformer-tiny_8xb128_in1k']['Published']['Top 1 Accuracy']
    assert published['laplacianformer-tiny'].top1 == tiny
    families = {published[name].family for name in top1.peers()}
    assert {'PVTv2', 'Swin', 'ConvNeXt', 'ResNet', 'EfficientViT', 'FastViT', 'RepViT'} <= families
