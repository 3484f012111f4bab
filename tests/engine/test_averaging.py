"""Averages of models, and training that is resumed: no tensor changes its meaning by them."""

from types import SimpleNamespace

import pytest
import torch
from conftest import registered
from mmengine.model import BaseModel
from mmengine.registry import HOOKS, MODELS
from saved_weights import ARCH, train
from torch.optim.swa_utils import AveragedModel, update_bn

from mmlaplace.engine import copy_features
from mmlaplace.models import BaseAttention, PerformerAttention
from mmlaplace.models.layers import PRepBN, TransformerBlock
from mmlaplace.models.layers.build import MAP_NORMS, TOKEN_NORMS

KEPT = 0.75  # of an average, at each update
AVERAGES = {
    'mmengine, EMA': lambda model, buffers: MODELS.build(dict(
        type='ExponentialMovingAverage', momentum=1 - KEPT, model=model, update_buffers=buffers)),
    'torch, SWA': lambda model, buffers: AveragedModel(model, use_buffers=buffers),
}  # fmt: skip
# In an average: the mean of means and variances; a count that nothing reads; the mean of forwards;
# the last draw.
KNOWN = {'running_mean', 'running_var', 'num_batches_tracked', 'forwards', 'projection_matrix'}


PARTS = [
    *(dict(options, type=name) for name in registered(BaseAttention)
      for options in ({}, *MODELS.get(name).tested_options)),
    *(dict(type=name) for name in (*TOKEN_NORMS, *MAP_NORMS, 'RepBN') if name != 'SyncBN'),  # a GPU
    dict(type='PRepBN', steps=3),
]  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize('part', PARTS, ids=lambda part: '-'.join(map(str, part.values())))
@torch.no_grad()
def test_an_average_of_equal_models_computes_as_the_model(part):
    sizes = dict(embed_dims=32, num_heads=2, input_resolution=(4, 4))
    if part['type'] in registered(BaseAttention):
        model = MODELS.build(dict(part, **sizes))
    else:
        model = TransformerBlock(32, dict(type='SoftmaxAttention', **sizes), norm_cfg=part)
    model, x = model.train(), torch.randn(2, 16, 32)
    named = {name.rpartition('.')[2] for name, _ in model.named_buffers()}
    assert named <= KNOWN, 'decide what the average of this buffer is'
    for make in AVERAGES.values():
        for buffers in (False, True):
            model.train()(x, (4, 4))  # gives statistics
            average = make(model, buffers)
            for _ in range(3):
                average.update_parameters(model)
            for training in (True, False):
                outs = []
                for one in (model, average):
                    torch.manual_seed(1)  # some draw
                    outs.append(one.train(training)(x, (4, 4)))
                # The weights are the same. Kernels may differ, as an average takes no gradients.
                torch.testing.assert_close(*outs)


# ---- PRepBN, whose forwards say how much of a LayerNorm it is


def test_an_averaged_norm_has_the_average_age_of_the_models():
    model, x = PRepBN(8, steps=10), torch.randn(2, 5, 8)
    average = AVERAGES['torch, SWA'](model, True)
    for _ in range(6):
        model(x)
        average.update_parameters(model)
    norm = average.module
    assert norm.forwards.item() == pytest.approx(3.5, rel=1e-6)  # roundings in fp32
    layer_norm, batch_norm = norm.layer_norm(x), norm.bn(x.flatten(0, 1)).view_as(x) + x
    torch.testing.assert_close(norm.train()(x), torch.lerp(layer_norm, batch_norm, 0.35))


def test_new_statistics_of_an_average_are_those_of_the_trained_norm():
    model = torch.nn.Sequential(PRepBN(8, steps=2), torch.nn.Linear(8, 8), PRepBN(8, steps=2))
    data = [torch.randn(3, 5, 8) for _ in range(4)]
    with torch.no_grad():
        for norm in (model[0], model[2]):  # unlike each other, so that they cannot be confused
            norm.layer_norm.weight.fill_(7.0)
            norm.forwards.fill_(5.0)
        average = AveragedModel(model)
        average.update_parameters(model)
        update_bn(data, average)
        first = average.module[0]
        means = [average.module[1](first.bn(x.flatten(0, 1)) + x.flatten(0, 1)).mean(0)
                 for x in data]  # fmt: skip
    # The sums of one batch in two orders.
    torch.testing.assert_close(average.module[2].bn.running_mean, torch.stack(means).mean(0))


# ---- Performer, whose weights get used to the draw


@pytest.mark.filterwarnings('error')
def test_an_average_of_draws_is_told_what_to_do():
    model = PerformerAttention(32, 2, (7, 7))
    average = AVERAGES['torch, SWA'](model, True)
    average.update_parameters(model)
    average.eval()
    for _ in range(20):
        model.redraw()
        model.bfloat16().eval()
    average.update_parameters(model.float())
    message = r'is 0.* and not 1.*copy_features\(model, averaged\.module'
    with pytest.warns(UserWarning, match=message):
        average.eval()
    with pytest.warns(UserWarning, match='copy_features'):  # training goes on from it
        average.train()
    copy_features(model, average.module)
    average.eval()


@pytest.mark.parametrize('averaged', [True, False])
def test_a_mean_teacher_has_the_features_of_its_student_and_frozen_weights_keep_their_own(averaged):
    hooks = [pytest.importorskip('mmdet.engine.hooks').MeanTeacherHook()] * averaged
    # A teacher may be a network of its own, as mmrazor distils from.
    dims = dict(student=(32, 32), teacher=(32, 32) if averaged else (64,))
    model = torch.nn.ModuleDict({
        name: torch.nn.ModuleList(PerformerAttention(one, 2, (7, 7)) for one in each)
        for name, each in dims.items()
    })  # fmt: skip
    model.student[0].requires_grad_(False)
    model.teacher.requires_grad_(False)
    runner = SimpleNamespace(model=torch.nn.DataParallel(model), iter=0, hooks=hooks)

    def matrices(network):
        return [part.projection_matrix.clone() for part in network]

    before, own = matrices(model.student), matrices(model.teacher)
    hook = HOOKS.build(dict(type='RedrawFeaturesHook', interval=1))
    hook.before_train(runner)
    assert all(map(torch.equal, matrices(model.teacher), before if averaged else own))
    hook.after_train_iter(runner, 0)
    drawn = matrices(model.student)
    assert list(map(torch.equal, before, drawn)) == [True, False]
    assert all(map(torch.equal, matrices(model.teacher), drawn if averaged else own))


# ---- a whole training


class Toy(BaseModel):
    def __init__(self) -> None:
        super().__init__(dict(type='ImgDataPreprocessor'))
        performer = dict(type='PerformerAttention')
        self.backbone = MODELS.build(dict(
            type='PVT', arch=ARCH, img_size=32, attn_cfg=performer,
            norm_cfg=dict(type='PRepBN', steps=4)))  # fmt: skip

    def forward(self, inputs, data_samples=None, mode='tensor'):
        return dict(loss=self.backbone(inputs)[-1].square().mean())


def saved_tensors(path, where, name) -> list:
    return [v for k, v in torch.load(path, weights_only=False)[where].items() if k.endswith(name)]


@pytest.mark.parametrize(('buffers', 'expected'), [(False, 4), (True, 2.265625)])
def test_a_training_with_averages_goes_on_after_a_break(tmp_path, buffers, expected):
    hooks = dict(
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1, by_epoch=False)),
        custom_hooks=[dict(type='RedrawFeaturesHook', interval=1),
                      dict(type='EMAHook', momentum=0.25, update_buffers=buffers)],
    )  # fmt: skip
    train(tmp_path / 'one', Toy(), 2, **hooks)
    source = dict(load_from=str(tmp_path / 'one/iter_2.pth'), resume=True)
    resumed = train(tmp_path / 'other', Toy(), 4, **hooks, **source)
    trained = {m.forwards.item() for m in resumed.model.modules() if isinstance(m, PRepBN)}
    assert trained == {4}
    path = tmp_path / 'other/iter_4.pth'
    # These are the averages: of 1, 2, 3 and 4, of which the first is copied.
    assert {v.item() for v in saved_tensors(path, 'state_dict', '.forwards')} == {expected}
    assert {v.item() for v in saved_tensors(path, 'ema_state_dict', '.forwards')} == {4}
    pairs = zip(*(saved_tensors(path, where, 'projection_matrix')
                  for where in ('state_dict', 'ema_state_dict')))  # fmt: skip
    assert all(torch.equal(*pair) for pair in pairs)
