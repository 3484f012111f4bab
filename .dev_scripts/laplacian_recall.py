"""The section of docs/probes.md on LaplacianFormer: recall by landmarks and kernels."""

from typing import Dict, List

import torch
from probe_sections import accuracy, filled, percent, with_ends

from mmlaplace.lab.comparison.attention_report import markdown
from mmlaplace.lab.probes.report import MISSING, STAR, Table
from mmlaplace.models.attentions.laplacian import KERNELS
from mmlaplace.models.layers import Landmarks
from mmlaplace.ops import cholesky_inverse


def recall_of(table: Table, attn_cfg: dict) -> str:
    """Recall in % in the last column of a table, by the config of the attention."""
    names = (name for name, cfg in table.study.attentions.items() if same(cfg, attn_cfg))
    return accuracy(table, next(names, ''), len(table.columns) - 1)


def same(cfg: dict, other: dict) -> bool:
    """Whether two configs are equal, given that 49 landmarks are the default."""
    default = dict(num_landmarks=49)
    return {**default, **cfg} == {**default, **other}


def landmark_rows(found: Dict[str, Table]) -> List[List[str]]:
    """Recall by the number of landmarks: in the picture's runs, and in two longer schedules."""
    longer = (found['landmarks_56'], found['options'], found['recall'])
    rows = []
    for name, cfg in found['landmarks'].study.attentions.items():
        if name.startswith((OTHERS, 'Skyformer')) or ', all tokens, ' in name:
            continue
        middle, *longest = (recall_of(table, cfg) for table in longer)
        last = next((cell for cell in longest if cell != MISSING), MISSING)
        rows.append([name, accuracy(found['landmarks'], name, 0), middle, last])
    return rows


def in_percent(table: Table, name: str, column: int) -> str:
    """An accuracy in %, for a sentence."""
    return accuracy(table, name, column).rstrip(STAR)


def variants_table(found: Dict[str, Table]) -> str:
    """Recall over heads and channels."""
    columns = {
        'picture': 'attentions', '1 head': 'heads_1', '4 heads': 'heads_4',
        '16 channels': 'channels_16', '64 channels': 'channels_64',
        '1 head, 64 channels': 'head_64',
    }  # fmt: skip
    rows = [
        [name, *(accuracy(found[study], name, 0) for study in columns.values())]
        for name in found['heads_1'].study.attentions
    ]
    longer = in_percent(found['recall'], 'Laplacian', 0)
    return f'{filled(VARIANTS.format(longer=longer))}\n\n{markdown(["recall, %", *columns], rows)}'


def options_table(table: Table) -> str:
    """Recall by options of LaplacianAttention."""
    rows = [[name, with_ends(table, name, 0)] for name in table.rows]
    return markdown(['LaplacianAttention with', '56 pairs, 1,500 steps'], rows)


LAPLACIAN = """\
Recall of [pairs](#the-probes) by `LaplacianAttention`, in %. *16 pairs* are the runs of the
picture. *56 pairs, 800 steps* have 32 channels too. *56 pairs, 1,500 steps* have 64 channels. The
last two columns have one or two rates, of which the better counts, and one seed. In the last one,
49 landmarks of the Laplacian have the median of three seeds.

{table}
{cut}
{explanation}

{sharpness}

{options}

{advice}

{variants}"""
EXPLANATION = """\
**The Laplacian kernel is too sharp for few landmarks.** A landmark is the mean of the tokens of a
cell. The kernel without landmarks recalls everything, and so do landmarks of all tokens. In 400
steps, 80 landmarks recall {eighty} % of 16 pairs, and 49 recall {laplacian} %, each with its best
rate. The 49 learn slowly: in 1,500 steps with 64 channels, they recall {laplacian_longer} % of 56
pairs. The Gaussian kernel with 49 recalls {gaussian} % of 16 pairs, {gaussian_seeds}. It fails in
*noise* and *one of many* too. Means of tokens are not the cause: with 16 of them, Skyformer recalls
{pooled} %, and with 16 drawn tokens {drawn} %, {sky_seeds}. Its kernel is the Gaussian."""
OPTIONS = """\
**λ decides, and whitening helps.** After 400 steps, the default recalls almost nothing. So options
are compared after 1,500 steps with 64 channels, with the better of two rates. Most have one seed.
Where three were run, the figure is their median, with the least and the largest in brackets:"""
FINDINGS = """\
A larger λ recalls more: {lambda_1} % with λ = 1, {lambda_2} % with 2, {default} % with 4, the
default, {lambda_8} % with 8 and {lambda_16} % with 16. Each of the seeds 0, 1 and 2 recalls less
without whitening, {none} %, and with the literal scale, {literal} %, than with the default. Seeds
of the default differ by {spread:.0f} points, so smaller differences from figures of one seed say
nothing. Where all tokens are landmarks, whitening matters less: {all_none} % of 16 pairs are right
without it, {all_literal} % with the literal scale and {all_default} % with the default, in 400
steps. But without it only the largest rate learns that."""
ADVICE = """\
So where single tokens count, such as text in images or matching, give `LaplacianFormer` more
landmarks, `attn_cfg=dict(num_landmarks=196)`, try `kernel='gaussian'` or `bandwidth=8`, or take an
attention that solves recall. With 196, all tokens of the third stage are landmarks at 224². In the
last stage, 49 already are all. More landmarks cost time. Small images do not need them: 9 to 100
landmarks, and λ = 4 and 8, have [the same top-1 on
Fashion-MNIST](attention_comparison.md#options-of-laplacianattention). On ImageNet the paper has λ =
4 as the best. So the defaults stay."""
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
**Heads and channels.** The picture has 2 heads and 32 channels. Each other column changes one of
these or both, with one seed and the better of two rates. A linear attention sums all pairs in a
matrix of each head, so it recalls more with more channels a head. The Laplacian needs more steps:
in 1,500, with 64 channels, it recalls {longer} % of 16 pairs."""


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
    """The explanation: landmarks, the kernel's options, heads and channels."""
    rows = landmark_rows(found)
    cut = any(row[-1].endswith(STAR) for row in rows)
    header = ['LaplacianAttention with', '16 pairs', '56 pairs, 800 steps', '56 pairs, 1,500 steps']
    table, options = found['landmarks'], found['options']
    explanation = EXPLANATION.format(
        eighty=in_percent(table, 'Laplacian, 80 landmarks (8 x 10)', 0),
        drawn=in_percent(table, 'Skyformer, 16 drawn', 0),
        sky_seeds=seeds_text(table, 'Skyformer, 16 pooled'),
        pooled=in_percent(table, 'Skyformer, 16 pooled', 0),
        gaussian=in_percent(table, 'Gaussian, 49 landmarks', 0),
        gaussian_seeds=seeds_text(table, 'Gaussian, 49 landmarks'),
        laplacian=in_percent(table, 'Laplacian, 49 landmarks (7 x 7)', 0),
        laplacian_longer=in_percent(options, 'the default: 49 landmarks', 0),
    )
    findings = FINDINGS.format(
        default=in_percent(options, 'the default: 49 landmarks', 0),
        none=in_percent(options, 'no whitening', 0),
        literal=in_percent(options, 'literal scale', 0),
        **{f'lambda_{size}': in_percent(options, f'λ = {size}', 0) for size in (1, 2, 8, 16)},
        spread=100 * options.spread('the default: 49 landmarks', 0),
        all_none=in_percent(table, 'Laplacian, all tokens, no whitening', 0),
        all_literal=in_percent(table, 'Laplacian, all tokens, literal scale', 0),
        all_default=in_percent(table, 'Laplacian, all 128 tokens', 0),
    )
    return LAPLACIAN.format(
        explanation=filled(explanation),
        sharpness=f'{filled(SHARPNESS)}\n\n{sharpness_table()}',
        options=f'{filled(OPTIONS)}\n\n{options_table(options)}\n\n{filled(findings)}',
        advice=filled(ADVICE),
        table=markdown(header, rows),
        cut='\n\\* The run ended at two minutes of the processor.\n' if cut else '',
        variants=variants_table(found),
    ).strip()
