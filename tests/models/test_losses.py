"""The loss of the mini segmentors is that of mmseg."""

import pytest
import torch

from mmlaplace.models import WeightedCrossEntropy

LOGITS, LABELS = torch.randn(2, 3, 4, 5), torch.randint(0, 3, (2, 4, 5))


def test_it_is_mmsegs_with_class_weights():
    losses = pytest.importorskip('mmseg.models.losses')
    options = dict(class_weight=[0.1, 1.0, 2.0], loss_weight=0.4)
    theirs = losses.CrossEntropyLoss(**options)(LOGITS, LABELS)
    torch.testing.assert_close(WeightedCrossEntropy(**options)(LOGITS, LABELS), theirs)


def test_pixels_without_a_label_do_not_count():
    loss, some = WeightedCrossEntropy([0.1, 1.0, 2.0]), LABELS.clone()
    some[1] = 255
    logits = LOGITS.clone().requires_grad_()
    torch.testing.assert_close(loss(logits, some), loss(LOGITS[:1], LABELS[:1]))
    none = loss(logits, torch.full_like(LABELS, 255))
    none.backward()
    assert none == 0 and not logits.grad.any()
    with pytest.raises(ValueError, match='no weights of pixels'):
        loss(LOGITS, LABELS, weight=torch.ones(2, 4, 5))
