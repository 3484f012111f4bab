"""Attentions of the configs of Long Range Arena, by setting and name."""

from typing import Any, Dict

from ...models.known_options import did_you_mean

# A sequence is a map of N x 1 tokens, for which rotary and learned positions of maps are of no use.
ATTENTIONS: Dict[str, Dict[str, Dict[str, Any]]] = {
    # Our own choices.
    'own': {
        'laplacian': dict(type='LaplacianAttention', num_landmarks=64, rope=False),
        'linear': dict(type='LinearAttention'),
        'linformer': dict(type='LinformerAttention', num_landmarks=128, resize=False),
        'nystromformer': dict(
            type='NystromformerAttention', landmark_method='runs', num_landmarks=128, lepe_kernel=0
        ),
        'performer': dict(type='PerformerAttention', num_features=128),
        'pola': dict(type='PolaAttention', key_positions=False),
        'soft': dict(
            type='SOFTAttention', normalized=False, landmark_method='pool', num_landmarks=64
        ),
        'softmax': dict(type='SoftmaxAttention'),
        'softpp': dict(type='SOFTAttention', landmark_method='pool', num_landmarks=64),
    },
    # Small tasks.
    'mini': {
        'laplacian': dict(type='LaplacianAttention', num_landmarks=16, rope=False),
        'linear': dict(type='LinearAttention'),
        'pola': dict(type='PolaAttention', key_positions=False),
        'softmax': dict(type='SoftmaxAttention'),
        'softpp': dict(type='SOFTAttention', landmark_method='pool', pool_ratio=4, lepe_kernel=0),
    },
    # Rows of PolaFormer's Tables 4 and 6, with the options of Skyformer's code.
    'polaformer': {
        'cosformer': dict(type='CosformerAttention'),
        'hedgehog': dict(type='HedgehogAttention'),
        'kernelized': dict(type='KernelAttention', attn_drop=0.1),
        'linformer': dict(type='LinformerAttention', num_landmarks=128, resize=False),
        'nystromformer': dict(
            type='NystromformerAttention', landmark_method='runs', num_landmarks=128, lepe_kernel=0
        ),
        'pola-a3': dict(type='PolaAttention', alpha=3, key_positions=False),
        'pola-a5': dict(type='PolaAttention', alpha=5, key_positions=False),
        'pola-a7': dict(type='PolaAttention', alpha=7, key_positions=False),
        'skyformer': dict(type='SkyformerAttention', landmark_method='random', num_landmarks=128),
        'softmax': dict(type='SoftmaxAttention', attn_drop=0.1),
    },
    # Rows of SOFT++'s Table 12, with the options of Nyströmformer's code.
    'softpp': {
        'linformer': dict(type='LinformerAttention', num_landmarks=128, resize=False),
        'nystromformer': dict(
            type='NystromformerAttention',
            landmark_method='runs',
            num_landmarks=64,
            lepe_kernel=0,
            conv_kernel_size=35,
        ),
        'performer': dict(type='PerformerAttention', num_features=128),
        'reformer': dict(type='ReformerAttention'),
        'soft': dict(
            type='SOFTAttention',
            normalized=False,
            landmark_method='pool',
            pool_ratio=4,
            lepe_kernel=0,
        ),
        'softmax': dict(type='SoftmaxAttention', attn_drop=0.1),
        'softpp': dict(type='SOFTAttention', landmark_method='pool', pool_ratio=4, lepe_kernel=0),
    },
}


def encoder_options(setting: str, attention: str) -> Dict[str, Any]:
    """The options of an encoder that its attention sets, for a config of ``configs/lra``.

    Args:
        setting: ``'own'``, ``'mini'``, ``'polaformer'`` or ``'softpp'``: whose options they are.
        attention: A name of that setting, as the environment variable ``ATTENTION`` gives it.

    Returns:
        A dict with ``attn_cfg``. The small tasks also mask padding for softmax.

    Raises:
        ValueError: If the setting has no such attention. The message lists those that it has.

    Examples:
        >>> from mmlaplace.lab.lra import encoder_options
        >>> encoder_options('polaformer', 'pola-a5')
        {'attn_cfg': {'type': 'PolaAttention', 'alpha': 5, 'key_positions': False}}
    """
    known = ATTENTIONS[setting]
    if attention not in known:
        raise ValueError(
            f'ATTENTION={attention!r} is none of this config'
            f'{did_you_mean(attention, known)}; it has {", ".join(known)}'
        )
    options: Dict[str, Any] = dict(attn_cfg=dict(known[attention]))
    if (setting, attention) == ('mini', 'softmax'):
        options['padding'] = 'mask'
    return options
