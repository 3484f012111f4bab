"""How the files of the authors' vision attentions become ours, see test_authors_attentions.py."""


def positions(value, hw_shape):
    """Positions of a map's tokens, reduced or not, ``(1, n, C)`` to ``(1, C, h, w)``."""
    ratio = round((hw_shape[0] * hw_shape[1] / value.shape[1]) ** 0.5)
    return value.mT.unflatten(2, [side // ratio for side in hw_shape])


def first(value, hw_shape):
    return value[0]


def rows(value, hw_shape):
    """``(1, heads, H, 1, a) -> (heads, a, H, 1)``, and the same for columns."""
    return value[0].permute(0, 3, 1, 2)


def flat(value, hw_shape):
    return value.flatten()


def agent_map(golden):
    """The map of the queries that the biases of rows and columns are for."""
    shapes = golden['param:ha_bias'].shape, golden['param:wa_bias'].shape
    return dict(input_resolution=(shapes[0][2], shapes[1][3]))


def square(sides):
    return {} if len(set(sides)) == 1 else None


LINEARS = {'q.': 'qkv.', 'kv.': 'kv.', 'proj.': 'proj.', 'dwc.': 'lepe.conv.'}
AUTHORS = {
    'flatten': dict(
        type='FLattenAttention',
        settings={'in:kernel_size': 'lepe_kernel'},
        names=dict(
            LINEARS, scale=('scale', flat), positional_encoding=('key_positions', positions)
        ),
    ),
    'agent': dict(
        type='AgentAttention',
        options=agent_map,
        settings={'in:agent_num': 'num_landmarks', 'in:agent_shape': square},
        names=dict(
            LINEARS, an_bias='gather_map', na_bias='spread_map',
            ah_bias=('gather_rows', first), aw_bias=('gather_columns', first),
            ha_bias=('spread_rows', rows), wa_bias=('spread_columns', rows),
        ),
    ),
    'xca': dict(
        type='XCAttention',
        names={'qkv.': 'qkv.', 'proj.': 'proj.', 'temperature': 'temperature'},
    ),
}  # fmt: skip
