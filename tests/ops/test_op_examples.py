"""The examples in the docstrings of the ops."""

import doctest

import pytest

from mmlaplace import ops


@pytest.mark.parametrize('name', ops.__all__)
def test_the_example_of_an_op_gives_what_it_says(name):
    (example,) = doctest.DocTestFinder(recurse=False).find(getattr(ops, name), name, module=False)
    assert example.examples
    result = doctest.DocTestRunner().run(example)
    assert result.failed == 0
