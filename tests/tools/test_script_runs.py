"""Scripts run in processes that have their imports, and say how they ended."""

import subprocess
import sys
import textwrap

from mmlaplace.commands.script_runs import run_script

CALLER = """
from pathlib import Path
from mmlaplace.commands.script_runs import import_first, run_script

if __name__ == '__main__':
    import_first('mmlaplace.commands', 'wave', 'no_such_module')
    for argument in ('fine', 'wrong', 'broken'):
        script = Path('scripts/script.py')
        print(run_script(script, [argument, '2'], Path('logs', argument, 'log.txt'), threads=1))
"""
SCRIPT = """
import sys
had_it = 'wave' in sys.modules
import beside
if __name__ == '__main__':
    print(sys.argv[1:], had_it, beside.VALUE, sys.modules['torch'].get_num_threads())
    print('to the other stream', file=sys.stderr)
    if sys.argv[1] == 'wrong':
        sys.exit('wrong argument')
    if sys.argv[1] == 'broken':
        for number in range(20):
            print(number)
        raise RuntimeError('it broke')
"""


def test_scripts_have_their_arguments_imports_and_logs(tmp_path):
    (tmp_path / 'scripts').mkdir()
    (tmp_path / 'scripts/beside.py').write_text('VALUE = 7\n')
    (tmp_path / 'scripts/script.py').write_text(textwrap.dedent(SCRIPT))
    (tmp_path / 'caller.py').write_text(CALLER)
    result = subprocess.run(
        [sys.executable, 'caller.py'], cwd=tmp_path, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    fine, wrong, broken = map(eval, result.stdout.splitlines())
    assert fine == (0, "['fine', '2'] True 7 1\nto the other stream")
    assert wrong[0] == 1 and wrong[1].endswith('to the other stream\nwrong argument')
    assert broken[0] == 1 and broken[1].endswith('RuntimeError: it broke')
    assert len(broken[1].splitlines()) == 15
    assert 'broken' in (tmp_path / 'logs/broken/log.txt').read_text().splitlines()[0]


def test_bytes_that_are_no_text_do_not_hide_how_a_script_ended(tmp_path):
    script = tmp_path / 'script.py'
    script.write_text("import sys; sys.stdout.buffer.write(b'caf\\xe9\\n'); sys.exit(3)")
    assert run_script(script, [], tmp_path / 'log.txt') == (3, 'caf\ufffd')
