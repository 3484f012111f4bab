"""Attentions give the authors' outputs and gradients, from the authors' own weights.

A file is one unit of the authors: weights (``param:*``), inputs and settings (``in:*``), outputs
and gradients (``out:*``). The tables in ``authors_*.py`` know a file by the longest of their names
that it starts with. A row has:

- ``type``, and ``options`` of all files of the name, or a function of a file's content for them;
- ``settings``: for a setting of the authors the name of our option, or a function of its value that
  returns our options. Others are options of their own name, or are constants here or told by
  shapes, which ``told`` lists;
- ``names``: for the start of a parameter's name its start here where that differs, or a pair of
  that and a function of the value and (H, W), or None for an unused one. Parameters of one name
  here are joined in the order of the table, and the axes are those of the parameter here: the
  weight of a convolution 1 x 1 is one of a linear. Or a function of the content for all of these;
- ``prepare``: a function of the attention and the file's content, such as to fix a random draw.
"""

import numpy as np
import pytest
import torch
from authors_classic import AUTHORS as CLASSIC
from authors_classic import hw_of
from authors_vision import AUTHORS as VISION
from mmengine.registry import MODELS
from test_golden import GOLDEN, assert_close

AUTHORS = {**CLASSIC, **VISION}
PATHS = [*(GOLDEN / 'attentions').glob('*.npz'), *GOLDEN.glob('*_attention_*.npz')]
FILES = {path.stem: path for path in sorted(PATHS)}
# Two orders of the same fp32 sums; a row may have another error of the gradient.
FORWARD, GRADIENT = 1e-5, 1e-4
# The authors' names of the number of heads, settings that every file may have, and parameters
# outside of the mixing rule.
HEADS = ('in:num_heads', 'in:heads', 'in:head_count', 'in:num_head')
COMMON = ('in:H', 'in:W', 'in:grad_y', *HEADS)
AROUND = ('qkv.', 'kv.', 'proj.', 'lepe.', 'key_positions')
# Settings of several authors, and their linears, in the order in which they are joined.
SETTINGS = {'in:kernel_size': 'lepe_kernel', 'in:n_iter': 'num_iters'}
LINEARS = {
    f'{name}.': 'qkv.'
    for name in (
        'to_q',
        'to_k',
        'to_qk',
        'to_v',
        'toqk',
        'tov',
        'to_qkv',
        'qkvg',
        'qkvo',
        'qk',
        'qkv.conv',
        'queries',
        'keys',
        'values',
        'query_projection',
        'key_projection',
        'value_projection',
        'q_proj',
        'k_proj',
        'v_proj',
        'qkv_proj.block.conv',
    )
} | {
    f'{name}.': 'proj.'
    for name in (
        'out',
        'out_proj',
        'out_projection',
        'to_out',
        'to_out.0',
        'proj.conv',
        'out_proj.block.conv',
        'reprojection',
    )
}
# In the code of all authors, the spatial reduction has these names.
REDUCTION = {'sr.': 'sr.projection.', 'norm.': 'sr.norm.'}


def longest_start(name, starts):
    return max((start for start in starts if name.startswith(start)), key=len)


def inputs_of(golden):
    """The inputs of the authors' module: tensors with axes of images, tokens and channels."""
    names = [name for name in ('x', 'q', 'k', 'qk', 'v') if f'in:{name}' in golden]
    values = {name: golden[f'in:{name}'] for name in names}  # Linformer's k is a number
    return {k: torch.from_numpy(v).requires_grad_() for k, v in values.items() if v.ndim >= 3}


def options_of(golden, row):
    """Our options from the settings of a file."""
    settings, options = {**SETTINGS, **row.get('settings', {})}, row.get('options', {})
    options = dict(options(golden) if callable(options) else options)
    known = {f'in:{name}' for name in (*inputs_of(golden), *row.get('told', '').split())}
    for name in sorted({key for key in golden if key.startswith('in:')} - known - {*COMMON}):
        value = golden[name].item() if golden[name].ndim == 0 else golden[name]
        ours = settings.get(name, name[len('in:') :])
        value = tuple(value.tolist()) if isinstance(value, np.ndarray) else value
        options.update({ours: value} if isinstance(ours, str) else ours(value))
    return options


def converted(golden, names, hw_shape):
    """The authors' parameters by our names."""
    own = names(golden) if callable(names) else names
    names = {'': '', 'lepe.': 'lepe.conv.', **LINEARS, **own}
    if golden.get('in:sr_ratio', 1) > 1:
        names = {**REDUCTION, **names}
    keys = [key[len('param:') :] for key in golden if key.startswith('param:')]
    starts, parts = {key: longest_start(key, names) for key in keys}, {}
    for key in sorted(keys, key=lambda key: list(names).index(starts[key])):
        ours, value = names[starts[key]], torch.from_numpy(golden[f'param:{key}'])
        if isinstance(ours, tuple):
            ours, change = ours
            value = change(value, hw_shape)
        if ours is not None:
            parts.setdefault(ours + key[len(starts[key]) :], []).append(value)
    return {ours: torch.cat(values) if values[1:] else values[0] for ours, values in parts.items()}


@pytest.mark.parametrize('name', FILES)
def test_attention_gives_the_authors_output_and_gradient(name):
    row = AUTHORS[longest_start(name, AUTHORS)]
    golden = dict(np.load(FILES[name]))
    hw_shape, inputs = hw_of(golden), inputs_of(golden)
    as_heads = 'x' not in inputs
    sample = next(iter(inputs.values()))
    num_heads = next((int(golden[name]) for name in HEADS if name in golden), 1)
    channels = sample.shape[-1] * num_heads if as_heads else sample.shape[1 + (sample.dim() == 3)]
    state = converted(golden, row.get('names', {}), hw_shape)
    cls, options = MODELS.get(row['type']), options_of(golden, row)
    if 'qkv.weight' in state and 'qkv_bias' in cls.known_options():
        options = {'qkv_bias': 'qkv.bias' in state, **options}
    sizes = dict(embed_dims=channels, num_heads=num_heads, input_resolution=hw_shape)
    attention = cls(**{**sizes, **options}).eval()
    shapes = {name: value.shape for name, value in attention.state_dict().items()}
    state = {name: value.reshape(shapes.get(name, -1)) for name, value in state.items()}
    missing, unexpected = attention.load_state_dict(state, strict=False)
    # A file of queries, keys and values is of the mixing rule alone.
    missing = [name for name in missing if not (as_heads and name.startswith(AROUND))]
    assert not missing and not unexpected
    if 'prepare' in row:
        row['prepare'](attention, golden)
    if as_heads:
        # Where there is one tensor for q and k it is both. Heads may lie in the batch.
        taken = {name: v if v.dim() == 4 else v[:, None] for name, v in inputs.items()}
        q, k = (taken.get(name, taken.get('qk')) for name in 'qk')
        out = attention.mix(q, k, taken['v'], hw_shape).reshape(inputs['v'].shape)
    elif sample.dim() == 4:  # a map
        out = attention(sample.flatten(2).mT, hw_shape).mT.unflatten(2, hw_shape)
    else:
        out = attention(sample, hw_shape)
    out.backward(torch.from_numpy(golden['in:grad_y']))
    assert_close(out, torch.from_numpy(golden['out:y']), FORWARD)
    tolerance = row.get('gradient', GRADIENT)
    for name, value in inputs.items():
        assert_close(value.grad, torch.from_numpy(golden[f'out:grad_{name}']), tolerance)
