"""How Sphinx builds the site: bash .dev_scripts/build_docs.sh. Nothing here needs a network."""

import csv
import re
from html import escape
from pathlib import Path
from urllib.parse import urlsplit

from docutils import nodes

import mmlaplace

ROOT = Path(__file__).resolve().parent.parent

project = 'mmlaplace'
author = project_copyright = 'the mmlaplace contributors'
version = release = mmlaplace.__version__

extensions = [
    'sphinx.ext.autodoc',
    'sphinx.ext.napoleon',
    'sphinx.ext.mathjax',
    'sphinx-mathjax-offline',  # puts MathJax beside the pages: they show maths without a network
    'sphinx_copybutton',
    'myst_parser',
]

html_theme = 'furo'
html_title = f'mmlaplace {release}'
html_copy_source = False
html_static_path = ['_static']
html_css_files = ['site.css']

myst_enable_extensions = ['dollarmath']
myst_heading_anchors = 3

autodoc_inherit_docstrings = False  # what overrides a method is documented where that is
autodoc_member_order = 'bysource'
autodoc_typehints_format = 'short'
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True
# Types of other projects, whose inventories would have to be downloaded to link to them.
nitpick_ignore_regex = [
    (r'py:.*', r'(torch|mmengine|numbers|os|pathlib)\..*'),
    (r'py:class', r'mmlaplace\.models\.attentions\.cross_shaped\.Strip.*'),  # parts of a class
]

copybutton_prompt_text = '$ '

# Links. Pages and READMEs are read in the repository too, so their links are relative to them; here
# READMEs are parts of pages, and folders cannot be opened.

LINK = re.compile(
    r'(?<!!)\[(?P<text>[^\]]*)\]\((?!\w+:|#)(?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)'
)
IMAGE = re.compile(r'!\[(?P<text>[^\]]*)\]\((?!\w+:)(?P<path>[^)\s]*)\)')
PAGES = {
    'README.md': 'index.md',
    'configs/classification': 'configs/classification.md',
    'configs/detection': 'configs/detection.md',
    'configs/segmentation': 'configs/segmentation.md',
    'CONTRIBUTING.md': 'developers/contributing.md',
    'CHANGELOG.md': 'changelog.md',
    'ops/README.md': 'developers/native_ops.md',
}


def page_of(readme: str) -> str:
    """The page that includes a Markdown file or a folder of configs, with the place on it."""
    if readme in PAGES:
        return f'/{PAGES[readme]}'
    task = re.fullmatch(r'configs/(\w+)/\w+/README\.md', readme)
    if task is None:
        return f'path:/../{readme}'  # on no page: to download
    title = (ROOT / readme).read_text().split('\n', 1)[0].lstrip('# ')
    # As GitHub makes anchors of headings.
    return f'/configs/{task[1]}.md#' + re.sub(r'[^\w -]', '', title.lower()).replace(' ', '-')


def from_site_root(text: str, folder: Path) -> str:
    """Markdown of a file in ``folder``, its links to files beginning at the site's root."""

    def resolved(path: str) -> str:
        return (folder / path).resolve().relative_to(ROOT).as_posix()

    def link(match: re.Match) -> str:
        path, anchor = resolved(match['path']), match['anchor'] or ''
        target = f'/../{path}'
        if path in PAGES:
            target = page_of(path)
        elif (ROOT / path).is_dir():
            return match['text']
        elif path.endswith('.md') and not path.startswith('docs/') and (ROOT / path).is_file():
            target = page_of(path)
        target = target.partition('#')[0] + anchor if anchor else target
        return f'[{match["text"]}]({target})'

    text = re.sub(r'(?<=\d) (?=[MG] *\|)', '\N{NO-BREAK SPACE}', text)  # figures keep their unit
    text = LINK.sub(link, text)
    return IMAGE.sub(lambda match: f'![{match["text"]}](/../{resolved(match["path"])})', text)


DATATABLES = '<script src="_static/datatables-3.1.5.min.js"></script>'
# After a table of a page: readers can search and sort it.
SEARCHABLE = '<script src="_static/searchable.js"></script>'


def table_of_all_models() -> str:
    """model_zoo.csv as HTML, in which model_zoo.js lets readers search and sort."""
    header, *rows = csv.reader((ROOT / 'docs/model_zoo.csv').read_text().splitlines())

    def cell(text: str) -> str:
        site = urlsplit(text).hostname
        return f'<a href="{escape(text)}">{site}</a>' if site else escape(text)

    head = ''.join(f'<th>{title}</th>' for title in header)
    body = ''.join(f'<tr>{"".join(f"<td>{cell(text)}</td>" for text in row)}</tr>' for row in rows)
    return (
        f'<table id="all-models-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'{DATATABLES}<script src="_static/model_zoo.js"></script>'
    )


def navigation(questions: str) -> str:
    """A hidden table of contents of each section of index.md, with the pages that it links to."""
    trees = []
    for section in questions.split('\n## ')[1:]:
        links = [match['path'] for match in LINK.finditer(section)]
        pages = [page_of(link[3:])[1:] if link.startswith('../') else link for link in links]
        caption, tree = section.split('\n', 1)[0], '\n'.join(pages)
        trees.append(f'```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{tree}\n```')
    return '\n\n'.join(trees)


def page_read(app, docname: str, content: list) -> None:
    content[0] = content[0].replace('<!-- all models -->', table_of_all_models())
    content[0] = content[0].replace('<!-- searchable -->', DATATABLES + SEARCHABLE, 1)
    content[0] = content[0].replace('<!-- searchable -->', SEARCHABLE)
    text = from_site_root(content[0], (ROOT / 'docs' / docname).parent)
    if docname == 'index':  # the site begins with the README
        readme = from_site_root((ROOT / 'README.md').read_text(), ROOT)
        sections = text.replace('\n## ', '\n### ').replace('# ', '## ', 1)
        text = '\n\n'.join([readme, sections, navigation(content[0])])
    content[0] = text


def include_read(app, relative_path: Path, parent: str, content: list) -> None:
    file = (ROOT / 'docs' / relative_path).resolve()
    content[0] = from_site_root(content[0], file.parent)


# Docstrings.


def resolve_bare_name(app, env, node: nodes.Element, content: nodes.Element):
    """Docstrings name our classes without their modules, which are other pages' here."""
    if node.get('refdomain') != 'py' or '.' in node['reftarget']:
        return None
    node['refspecific'] = True  # look in all modules
    return env.domains['py'].resolve_xref(
        env, node['refdoc'], app.builder, node['reftype'], node['reftarget'], node, content
    )


def skip_namedtuple_fields(app, what: str, name: str, member, skip: bool, options):
    """The docstrings of the tuples tell their fields; Python's own say 'Alias for field number'."""
    return True if type(member).__name__ == '_tuplegetter' else None


def setup(app) -> None:
    app.connect('source-read', page_read)
    app.connect('include-read', include_read)
    app.connect('missing-reference', resolve_bare_name)
    app.connect('autodoc-skip-member', skip_namedtuple_fields)
