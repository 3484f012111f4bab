"""A small backbone, its weights in files, and whether they are those of another."""

import torch
from mmengine.registry import MODELS

ARCH = dict(
    embed_dims=(8, 16, 16, 32), depths=(1, 1, 2, 1), num_heads=(1, 1, 2, 2), ffn_ratios=(2,) * 4
)


def build(**kwargs):
    return MODELS.build(dict(dict(type='LaplacianFormer', arch=ARCH, img_size=32), **kwargs))


def same(module, weights) -> bool:
    own = module.state_dict()
    return set(own) == set(weights) and all(torch.equal(own[k], weights[k]) for k in own)


def save(path, weights, prefix='', container='state_dict', **beside):
    content = {prefix + name: value for name, value in weights.items()}
    torch.save({container: content, **beside} if container else content, path)
    return str(path)


def without(weights, name):
    return {k: v for k, v in weights.items() if not k.startswith(name)}
