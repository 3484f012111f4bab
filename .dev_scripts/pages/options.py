"""The tables of docs/options.md: options of every backbone and attention, from their docstrings."""

import inspect
import re
from dataclasses import fields
from functools import partial
from typing import Any, Callable, Dict, Iterable, List

from mmengine.registry import MODELS

from mmlaplace.models import BaseAttention, Frame, PyramidBackbone, QKVAttention
from mmlaplace.models.pyramid.arguments import ARCH_KEYS
from mmlaplace.models.pyramid.options import with_attention
from mmlaplace.writing import markdown_table

from .files import ROOT, Files

PAGE = ROOT / 'docs/options.md'
SECTION = r'^{}:\n(.*?)(?=^(?:Args|Attributes|Returns|Raises|Source|Examples):|^\S|\Z)'


def registered(base: type) -> List[type]:
    """Classes of ours in the registry that extend this, in alphabetical order."""
    ours = (cls for cls in MODELS.module_dict.values() if cls.__module__.startswith('mmlaplace.'))
    return sorted((cls for cls in ours if issubclass(cls, base)), key=lambda cls: cls.__name__)


def entries(documented: Any, section: str = 'Args') -> Dict[str, str]:
    """What a section of a docstring says of each name, as Markdown."""
    doc = inspect.getdoc(documented) or ''
    found = re.search(SECTION.format(section), doc, re.MULTILINE | re.DOTALL)
    text = found[1] + '\n' if found else ''
    found = re.findall(r'^ {4}([\w*, ]+): (.*?)(?=^ {4}\S|\Z)', text, re.MULTILINE | re.DOTALL)
    return {name.strip(): markdown(text) for names, text in found for name in names.split(',')}


def markdown(text: str) -> str:
    """The text of a docstring as one line of Markdown, for a cell of a table."""
    text = re.sub(r':math:`([^`]*)`', r'$\1$', ' '.join(text.split()))
    text = re.sub(r':\w+:`~?(?:[\w.]*\.)?(\w+)`', r'`\1`', text)
    return text.replace('``', '`').replace('|', r'\|')


def shown(name: str, options: Dict[str, Any]) -> str:
    """``name(option=value)``, or the name alone without options."""
    return name + (f'({", ".join(f"{k}={v!r}" for k, v in options.items())})' if options else '')


def options_table(documented: Any) -> str:
    """The arguments whose meaning the docstring tells itself; empty where there is none."""
    texts, rows = entries(documented), []
    for name, parameter in inspect.signature(documented).parameters.items():
        if name in texts and not re.match(r'As in `\w+`\.', texts[name]):
            rows.append(option_row(name, texts[name], parameter.default))
    return markdown_table(['option', 'default', 'meaning'], rows) if rows else ''


def option_row(name: str, text: str, default: Any) -> List[str]:
    """A default that is None is told by the text; any other is not told twice."""
    if default in (None, inspect.Parameter.empty):
        return [f'`{name}`', '', text]
    last = re.search(r' Default: `?([^` ]+)`?\.$', text)
    if last:  # repr(float('1e-2')) and repr(0.01) are the same
        number = re.fullmatch(r'[-\d.e]+', last[1])
        same = float(last[1]) == default if number else last[1] == repr(default)
        text = text[: last.start()] if same else text
    return [f'`{name}`', f'`{default!r}`', text]


def papers(cls: type) -> str:
    """Links to the papers of a class, or of the base that names them.

    Raises:
        ValueError: If there is no line ``Source:``.
    """
    text = section(cls, 'Source')
    if not text:
        raise ValueError(
            f'the docstring of {cls.__name__} has no source; add a line "Source: NAME (arXiv '
            f'NUMBER)." before its examples in {inspect.getsourcefile(cls)}'
        )
    found = re.findall(r'(?:, | and )?([\w+& -]+?) \(arXiv ([\d.]+)\)', text)
    return ', '.join(f'[{name}](https://arxiv.org/abs/{number})' for name, number in found)


def section(cls: type, title: str) -> str:
    """The paragraph ``TITLE: …`` of a docstring, or of that of a base; empty if there is none."""
    for base in cls.__mro__:
        doc = inspect.cleandoc(base.__doc__ or '')
        if found := re.search(rf'^{title}: (.*?)(?:\n\n|\Z)', doc, re.M | re.S):
            return ' '.join(found[1].split())
    return ''


def attention_of(cfg: dict) -> str:
    """The attention of a stage, and the one in its windows."""
    inner = attention_of(cfg['attn_cfg']) + ' in ' if 'attn_cfg' in cfg else ''
    options = {name: value for name, value in cfg.items() if name not in ('type', 'attn_cfg')}
    return inner + shown(cfg['type'], options)


def host_of(cls: type) -> Callable:
    """The function of a backbone's host, without what the backbone changes in its arguments."""
    return cls.host.func if isinstance(cls.host, partial) else cls.host


def backbone_row(cls: type) -> List[str]:
    changed = cls.host.keywords if isinstance(cls.host, partial) else {}
    stages = with_attention(cls.host(), cls.default_attn_cfg)
    names = [f'`{attention_of(stage.attn)}`' if stage.attn else 'none' for stage in stages]
    counts = {name: names.count(name) for name in names}
    attentions = ', '.join(f'{k} x{n}' if n > 1 else k for k, n in counts.items())
    host = f'`{shown(host_of(cls).__name__, changed)}`'
    return [f'`{cls.__name__}`', host, attentions, papers(cls)]


def size_rows(backbones: List[type]) -> Iterable[List[str]]:
    """The sizes of all; backbones with the same ones share their rows."""
    groups: Dict[str, List[type]] = {}
    for cls in backbones:
        groups.setdefault(repr((cls.arch_zoo, cls.default_arch)), []).append(cls)
    for group in groups.values():
        names = ', '.join(f'`{cls.__name__}`' for cls in group)
        for name, arch in group[0].arch_zoo.items():
            default = ' (default)' if name == group[0].default_arch else ''
            values = (', '.join(map(str, arch[key])) for key in ARCH_KEYS)
            yield [names, f'`{name}`{default}', *values]


def frame_row(cls: type) -> List[str]:
    values = {field.name: getattr(cls.frame, field.name) for field in fields(Frame)}
    declared = {f.name: values[f.name] for f in fields(Frame) if values[f.name] != f.default}
    fixed = ', '.join(f'`{name}`' for name in cls.fixed_options)
    return [f'`{cls.__name__}`', f'`{shown("Frame", declared) if declared else "Frame()"}`', fixed]


def tables() -> Dict[str, str]:
    """The tables by their names in the page."""
    backbones = [cls for cls in registered(PyramidBackbone) if cls is not PyramidBackbone]
    attentions = registered(BaseAttention)
    framed = [cls for cls in attentions if issubclass(cls, QKVAttention)]
    texts = entries(Frame, 'Attributes')
    rows = [option_row(field.name, texts[field.name], field.default) for field in fields(Frame)]
    # What an attention can do in the place of torch.nn.MultiheadAttention, or why not.
    multihead = []
    for cls in attentions:
        reasons = cls.no_multihead, cls.no_multihead or cls.same_tokens
        uses = ('no' if reason else 'yes' for reason in reasons)
        multihead.append([f'`{cls.__name__}`', *uses, reasons[1]])
    refusing = [cls for cls in attentions if cls.no_prefix_tokens]
    prefix = [[f'`{cls.__name__}`', cls.no_prefix_tokens] for cls in refusing]
    common = [options_table(PyramidBackbone)]
    for host in dict.fromkeys(map(host_of, backbones)):
        if options_table(host):
            users = [cls.__name__ for cls in backbones if host_of(cls) is host]
            common += [f'### Options of {", ".join(users)}', options_table(host)]
    own = []
    for cls in attentions:
        own.append(f'### {cls.__name__}')
        own.append(f'{markdown(inspect.getdoc(cls).partition(chr(10) * 2)[0])} {papers(cls)}')
        own.append(options_table(cls) or 'It has no options beside those of its frame.')
    return dict(
        backbones=markdown_table(
            ['backbone', 'host', 'attentions', 'papers'], map(backbone_row, backbones)
        ),
        sizes=markdown_table(['backbones', 'arch', *ARCH_KEYS], size_rows(backbones)),
        common='\n\n'.join(common),
        frames=markdown_table(['attention', 'declared', 'fixed'], map(frame_row, framed)),
        fields=markdown_table(['field', 'default', 'meaning'], rows),
        multihead=markdown_table(
            ['attention', 'self-attention', 'cross-attention', 'why not'], multihead
        ),
        prefix=markdown_table(['attention', 'why not'], prefix),
        attentions='\n\n'.join(own),
    )


def update(files: Files) -> None:
    files.tables(PAGE, 'table', tables().__getitem__)
