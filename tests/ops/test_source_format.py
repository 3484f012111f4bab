"""The native sources: their format, and which of them make the library."""

import re
import runpy
import subprocess

import clang_format
import pytest
from conftest import ROOT

from mmlaplace.ops import _native
from mmlaplace.ops._sources import SUFFIXES, library_sources

SOURCES = sorted(
    path
    for folder in ('ops', 'tests/ops/native')
    for path in (ROOT / folder).rglob('*')
    if path.suffix in SUFFIXES
)


def test_clang_format_would_change_no_native_source():
    # Of the environment and not of the PATH, as versions differ in what they change.
    program = clang_format.get_executable('clang-format')
    result = subprocess.run(
        [program, '--dry-run', '-Werror', *SOURCES], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_no_line_of_a_native_source_has_more_than_100_columns():
    # clang-format leaves a line alone that it cannot break.
    long = [
        f'{path.relative_to(ROOT)}:{number}'
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert not long


def test_hook_and_tests_have_the_same_clang_format():
    hook = (ROOT / '.pre-commit-config.yaml').read_text()
    (revision,) = re.findall(r'mirrors-clang-format\n    rev: v(\S+)', hook)
    assert f'clang-format=={revision}\n' in (ROOT / 'requirements/tests.txt').read_text()


def test_ops_has_no_file_of_another_kind():
    others = {
        path.relative_to(ROOT / 'ops').as_posix()
        for path in (ROOT / 'ops').rglob('*')
        if path.is_file() and path.suffix not in (*SUFFIXES, '.pyc')
    }
    assert others == {'README.md', 'benchmarks/difference_peak.py'}


def test_headers_for_each_instruction_set_say_in_their_first_line_who_includes_them():
    for path in (ROOT / 'ops').rglob('*.h'):
        text = path.read_text()
        if '#pragma once' not in text and path.name != 'cpu_dispatch.h':
            assert text.startswith('// Included once per instruction set; see cpu_dispatch.h.'), (
                path
            )


def test_the_peak_of_differences_and_onnx_runtime_are_not_in_the_library():
    folder = ROOT / 'ops'
    names = [path.relative_to(folder).as_posix() for path in library_sources(folder)]
    assert 'common/cpu/cpu_dispatch.h' in names and 'common/cuda/build_info_cuda.cu' in names
    assert not [name for name in names if name.startswith(('benchmarks/', 'onnxruntime/'))]
    assert not [name for name in _native.AVAILABLE if 'peak' in name]


def test_the_peak_of_differences_names_what_it_lacks(monkeypatch):
    load = runpy.run_path(str(ROOT / 'ops/benchmarks/difference_peak.py'))['load']
    monkeypatch.setenv('PATH', '')
    with pytest.raises(RuntimeError, match='Ninja is required'):
        load(with_cuda=False)
