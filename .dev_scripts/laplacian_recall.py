"""The section of docs/probes.md on LaplacianFormer: recall by landmarks and kernels."""

import textwrap
from typing import Dict, List, Optional

import torch

from mmlaplace.comparison.attention_report import markdown
from mmlaplace.models.attentions.laplacian import KERNELS
from mmlaplace.models.layers import Landmarks
from mmlaplace.ops import cholesky_inverse
from mmlaplace.probes.report import MISSING, Table
from mmlaplace.probes.study import read_studies


def filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def percent(value: Optional[float]) -> str:
    return MISSING if value is None else f'{100 * value:.0f}'


def landmark_rows(found: Dict[str, Table]) -> List[List[str]]:
    """Recall by variants of LaplacianAttention: 16 pairs in short runs, 56 pairs in longer ones."""
    short_run, long_run = found['landmarks'], found['recall']
    last, rows = len(long_run.columns) - 1, []
    for name in short_run.study.attentions:
        cfg = short_run.study.attentions[name]
        twin = next((n for n, c in long_run.study.attentions.items() if c == cfg), '')
        run = long_run.rows[twin][last] if twin in long_run.rows else None
        cut = run is not None and run.seconds >= long_run.study.schedule['seconds']
        cells = [
            percent(short_run.accuracy(name, 0)) if name in short_run.rows else MISSING,
            MISSING if run is None else percent(long_run.accuracy(twin, last)) + '*' * cut,
        ]
        if cells != [MISSING] * 2:
            rows.append([name, *cells])
    return rows


def variants_table(found: Dict[str, Table]) -> str:
    """Recall over heads, channels and the size of the map. Columns without runs are left out."""
    columns = {
        'picture': 'attentions', '1 head': 'heads_1', '4 heads': 'heads_4',
        '16 channels': 'channels_16', '64 channels': 'channels_64',
        '512 tokens, 64 pairs, 800 steps': 'large', '2,048 tokens, 64 pairs, 800 steps': 'larger',
    }  # fmt: skip
    columns = {title: name for title, name in columns.items() if name in found}
    rows = []
    studies = read_studies()
    for name in {**studies['heads_1'].attentions, **studies['large'].attentions}:
        tried = [found[of] for of in columns.values()]
        cells = [percent(t.accuracy(name, 0)) if name in t.rows else MISSING for t in tried]
        if any(cell != MISSING for cell in cells[1:]):
            rows.append([name, *cells])
    return VARIANTS + markdown(['recall, %', *columns], rows) if rows else ''


LAPLACIAN = """\
Recall of [pairs](#the-probes) by `LaplacianAttention`, in %. *16 pairs* are the runs of the
picture, with 32 channels and 400 steps, at the best rate that was run. *56 pairs* are runs with 64
channels and 1,500 steps.

{table}
{cut}
{explanation}

{sharpness}

So where single tokens count, such as text in images or matching, give `LaplacianFormer` more
landmarks, `attn_cfg=dict(num_landmarks=196)`, try `kernel='gaussian'`, or take an attention that
solves recall. With 196, all tokens of the third stage are landmarks at 224². In the last stage, 49
already are all. More landmarks cost time. Small images do not need them: 9 to 100 have [the same
top-1 on Fashion-MNIST](attention_comparison.md#options-of-laplacianattention). The defaults stay,
as in the paper.

{variants}"""
EXPLANATION = """\
**The Laplacian kernel is too sharp for few landmarks.** A landmark is the mean of the tokens of a
cell. Recall rises with the number of landmarks, and the kernel without landmarks recalls
everything. With 49 landmarks and the best of three rates, the Gaussian kernel recalls {gaussian} %,
{gaussian_seeds}, and the Laplacian kernel {laplacian} %. At the first rate, other options of the
Laplacian kernel recall almost nothing ({others} %). The Gaussian kernel fails in *noise* and *one
of many* too. Drawn tokens are better landmarks than means: with 16, Skyformer recalls {drawn} %
against {pooled} %."""
SHARPNESS = """\
Landmarks stand for the tokens: they give a kernel Ĝ instead of G. The Laplacian has a cusp at each
token, and a mean is none of the tokens. The Gaussian is smooth. So for random tokens on a map of 8
x 16, 49 means give back much of the Gaussian and little of the Laplacian. The table has what is
missing of the kernel's variation over queries, the norm of Ĝ − G over that of G less its column
means. Tokens are normal, with 16 channels. In a trained detector, 49 means miss 55 to 71 % of the
Laplacian kernel, by the norm of Ĝ − G over that of G
([table](dense_prediction.md#how-many-landmarks))."""
OTHERS = 'Laplacian, 49, '
VARIANTS = """\
**Heads, channels and larger maps.** The picture has 2 heads, 32 channels and 128 tokens. Each
other column changes one of these, with one seed and one rate. A linear attention sums all pairs in
a matrix of each head, so it recalls more with more channels a head. Landmarks gain nothing by them.

"""


def missing_share(kernel: str, bandwidth: float, landmarks: int, deviation: float) -> float:
    """The share of a kernel's variation over queries that is lost by landmarks of random keys."""
    kernel_fn, draw = KERNELS[kernel][0], torch.Generator().manual_seed(0)
    q, k = deviation * torch.randn(2, 8, 1, 8 * 16, 16, generator=draw)  # (B, heads, N, d) each
    means = Landmarks(landmarks)(k, (8, 16))
    inverse = cholesky_inverse(kernel_fn(means, means, bandwidth), ridge=1e-2)
    exact = kernel_fn(q, k, bandwidth)
    found = kernel_fn(q, means, bandwidth) @ inverse @ kernel_fn(means, k, bandwidth)
    varying = exact - exact.mean(-2, keepdim=True)  # whitening takes the means of columns off
    return float((found - exact).norm() / varying.norm())


def sharpness_table() -> str:
    """What is missing of each kernel with few landmarks and with all tokens."""
    rows = []
    for kernel, symbol, bandwidths in (('laplacian', 'λ', (0.5, 4, 32)), ('gaussian', 'σ', (2, 4))):
        for bandwidth in bandwidths:
            cells = [
                percent(missing_share(kernel, bandwidth, landmarks, deviation))
                for landmarks in (49, 256) for deviation in (0.3, 1.0)
            ]  # fmt: skip
            rows.append([f'{kernel.capitalize()}, {symbol} = {bandwidth:g}', *cells])
    header = ['% missing', *(f'{what}, deviation {deviation}'
              for what in ('49 means', 'all tokens') for deviation in (0.3, 1))]  # fmt: skip
    return markdown(header, rows)


def seeds_text(table: Table, name: str) -> str:
    """The number of seeds behind the first cell of a row."""
    found = table.rows[name][0] if name in table.rows else None
    seeds = found.seeds if found else 0
    return f'with {seeds} seed{"s" * (seeds != 1)}'


def laplacian_section(found: Dict[str, Table]) -> str:
    """The explanation: landmarks, the kernel's options, heads and channels, size of the map."""
    rows = [row for row in landmark_rows(found) if not row[0].startswith((OTHERS, 'Skyformer'))]
    cut = any(row[-1].endswith('*') for row in rows)
    header = ['LaplacianAttention with', '16 pairs', '56 pairs']
    table, others = found['landmarks'], []

    def recall(name: str) -> str:
        return percent(table.accuracy(name, 0)) if name in table.rows else MISSING

    for name in table.rows:
        if name.startswith(OTHERS):
            others.append(f'{name.replace(OTHERS, "")}: {recall(name)}')
    return LAPLACIAN.format(
        explanation=filled(
            EXPLANATION.format(
                drawn=recall('Skyformer, 16 drawn'),
                pooled=recall('Skyformer, 16 pooled'),
                gaussian=recall('Gaussian, 49 landmarks'),
                gaussian_seeds=seeds_text(table, 'Gaussian, 49 landmarks'),
                laplacian=recall('Laplacian, 49 landmarks (7 x 7)'),
                others=', '.join(others),
            )
        ),
        sharpness=f'{filled(SHARPNESS)}\n\n{sharpness_table()}',
        table=markdown(header, rows),
        cut='\n\\* The run ended at two minutes of the processor.\n' if cut else '',
        variants=variants_table(found),
    ).strip()
