"""Every shipped config parses, builds and agrees with itself and with its metafile."""

import copy
import re

import pytest
import torch
import yaml
from conftest import ROOT
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, PARAM_SCHEDULERS, DefaultScope

LEAVES = sorted(
    path
    for path in (ROOT / 'configs').rglob('*.py')
    if '_base_' not in path.relative_to(ROOT).parts
)
METAFILES = sorted((ROOT / 'configs').rglob('metafile.yml'))
names = [str(path.relative_to(ROOT / 'configs')) for path in LEAVES]


def load(path) -> Config:
    return Config.fromfile(path)


def build_model(cfg):
    import mmpretrain.models  # noqa: F401  (registers)
    from mmpretrain.registry import MODELS

    return MODELS.build(dict(copy.deepcopy(cfg.model), data_preprocessor=cfg.data_preprocessor))


def test_there_are_configs_for_every_size():
    stems = {path.stem for path in LEAVES}
    for size in ('tiny', 'small', 'medium', 'large', 'huge'):
        assert f'laplacianformer-{size}_8xb128_in1k' in stems
    assert {
        'laplacianformer-micro_1xb32_mini', 'laplacianformer-micro-softmax_1xb32_mini'
    } <= stems  # fmt: skip


@pytest.mark.parametrize('path', LEAVES, ids=names)
def test_leaf_is_thin_and_stands_alone(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 40
    bases = [*ROOT.glob('configs/*/_base_/**/*.py'), path]
    assert bases
    assert not any(re.search(r'\w::\w', b.read_text()) for b in bases), 'base of another package'
    cfg = load(path)
    assert cfg.custom_imports.imports == ['mmlaplace']
    assert cfg.auto_scale_lr.base_batch_size > 0


@pytest.mark.parametrize('path', LEAVES, ids=names)
def test_model_optimizer_and_schedule_build(path):
    cfg = load(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        model = build_model(cfg)
        optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        for scheduler in cfg.param_scheduler:
            scheduler = dict(scheduler)
            if scheduler.pop('convert_to_iter_based', False):
                cls = PARAM_SCHEDULERS.get(scheduler.pop('type'))
                cls.build_iter_from_epoch(optim_wrapper.optimizer, **scheduler, epoch_length=10)
            else:
                PARAM_SCHEDULERS.build(
                    scheduler, default_args=dict(optimizer=optim_wrapper.optimizer)
                )
    assert max(s['end'] for s in cfg.param_scheduler) == cfg.train_cfg.max_epochs
    assert model.backbone.embed_dims[-1] == model.head.in_channels
    decayed = {id(p) for group in optim_wrapper.optimizer.param_groups
               if group['weight_decay'] for p in group['params']}  # fmt: skip
    for name, parameter in model.named_parameters():
        if 'norm' in name or name.endswith(('.bias', '.gamma')):
            assert id(parameter) not in decayed, name


@pytest.mark.parametrize('path', LEAVES, ids=names)
def test_pipelines_build_and_the_model_takes_their_images(path):
    cfg = load(path)
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        import mmpretrain.datasets  # noqa: F401  (registers)
        from mmpretrain.registry import TRANSFORMS

        for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
            for transform in loader.dataset.pipeline:
                assert TRANSFORMS.build(transform) is not None
            workers = loader.num_workers
            assert not (loader.get('persistent_workers') and workers == 0)
        model = build_model(cfg).eval()
    with torch.no_grad():
        assert model(torch.zeros(1, 3, 64, 64)).shape == (1, cfg.model.head.num_classes)


def test_the_five_sizes_have_the_published_size_and_cost():
    """Parameters within 1 %, MACs of convolutions and linears within 3 %."""
    from mmlaplace.utils.complexity import count_complexity

    (metafile,) = [p for p in METAFILES if p.parent.name == 'laplacianformer']
    models = yaml.safe_load(metafile.read_text())['Models']
    assert len(models) == 5
    for entry in models:
        cfg = load(ROOT / entry['Config'])
        with DefaultScope.overwrite_default_scope(cfg.default_scope):
            counted = count_complexity(build_model(cfg).to('meta'))
        published = entry['Metadata']['Published']
        assert counted.parameters == pytest.approx(published['Parameters'], rel=0.01)
        assert counted.weight_macs == pytest.approx(published['MACs'], rel=0.03)
        # The metafile's own figures are what is counted, to the digits the tables show.
        assert counted.parameters == entry['Metadata']['Parameters']
        assert counted.weight_macs == pytest.approx(entry['Metadata']['MACs'], rel=2e-3)


def test_metafiles_and_configs_name_each_other():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']
    assert sorted(index) == [str(path.relative_to(ROOT)) for path in METAFILES]
    named = set()
    for metafile in METAFILES:
        content = yaml.safe_load(metafile.read_text())
        for collection in content['Collections']:
            assert (ROOT / collection['README']).is_file()
        for model in content['Models']:
            assert (ROOT / model['Config']).is_file()
            assert model['Name'] == (ROOT / model['Config']).stem
            named.add(model['Config'])
    # The mini configs are no model of the zoo.
    zoo = {str(path.relative_to(ROOT)) for path in LEAVES if not path.stem.endswith('_mini')}
    assert zoo == named


def test_missing_data_folder_is_named(tmp_path):
    cfg = load(ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py')
    cfg.train_dataloader.dataset.data_root = str(tmp_path / 'nowhere')
    with DefaultScope.overwrite_default_scope(cfg.default_scope):
        import mmpretrain.datasets  # noqa: F401  (registers)

        with pytest.raises(FileNotFoundError, match='nowhere/train'):
            DATASETS.build(dict(cfg.train_dataloader.dataset, type='mmpretrain.CustomDataset'))
