"""The server that the explorer's page comes from, and what it answers."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from conftest import ROOT, refusal_of, run_script
from PIL import Image
from processes import wait_until

SCRIPT = ROOT / 'demo/attention_explorer.py'
SMALL = '?image=astronaut&size=64&stage=0&attention=LaplacianAttention'
pytestmark = pytest.mark.slow


def test_the_command_line_says_what_is_wrong():
    pytest.importorskip('gradio')
    assert '--model nowhere.py: ' in run_script(SCRIPT, '--model', 'nowhere.py').stderr
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        assert '--port' in refusal_of(SCRIPT, '--port', taken.getsockname()[1])


def answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=600) as response:
        return response.read()


def answers(address: str) -> bool:
    with contextlib.suppress(urllib.error.URLError):
        return bool(answer(address))
    return False


@pytest.fixture(scope='module')
def address():
    """Of a server in a process of its own, as a user starts it."""
    pytest.importorskip('gradio', reason='no gradio: pip install "mmlaplace[demo]"')
    pytest.importorskip('skimage', reason='no scikit-image, which has the photographs')
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    nothing = ('--quick-start', 'nowhere', '--compared', 'nowhere')
    server = subprocess.Popen(
        [sys.executable, SCRIPT, '--port', str(port), *nothing],
        env={**os.environ, 'PYTHONPATH': str(ROOT)},
        stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    found = f'http://127.0.0.1:{port}/'
    try:
        wait_until(lambda: answers(found), [server])
        yield found
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(600)


def test_pictures_have_addresses_of_their_own(address):
    assert answer(f'{address}rows.png{SMALL}').startswith(b'\x89PNG')
    for wrong, code, told in (('svg?x=2', 400, 'outside of the image'), ('gif', 404, 'rows.png')):
        with pytest.raises(urllib.error.HTTPError) as raised:
            answer(f'{address}rows.{wrong}')
        assert raised.value.code == code
        assert told in raised.value.read().decode()


def sent(address: str, name: str, *data) -> str:
    """What the server answers to an event of the page that is sent by hand."""
    events = json.loads(answer(f'{address}config'))['dependencies']
    number = next(event['id'] for event in events if event['api_name'] == name)
    session = f'{name}{time.monotonic()}'
    content = json.dumps(dict(fn_index=number, session_hash=session, data=data)).encode()
    kind = {'Content-Type': 'application/json'}
    answer(urllib.request.Request(f'{address}gradio_api/queue/join', content, kind))
    return answer(f'{address}gradio_api/queue/data?session_hash={session}').decode()


def test_what_was_uploaded_is_taken_and_no_other_file_of_the_server(address, tmp_path):
    """A path that is sent as an upload would else be copied to where everybody can read it."""
    controls = ('astronaut', 64, 0.5, 0.5, [], ['LaplacianAttention'], ['laplacianformer'])
    controls += (0, -1, 0, [], 'own')
    secret = tmp_path / 'secret.txt'
    secret.write_text('secret')
    file = dict(path=str(secret), meta=dict(_type='gradio.FileData'))
    for name, data in (('changed', controls[1:]), ('image_sent', controls)):
        said = sent(address, name, file, *data)
        assert not re.findall(r'/gradio_api/file=[^\'"]+', said)
        assert 'it was not uploaded by a user' in said

    Image.new('RGB', (80, 60), 'teal').save(tmp_path / 'teal.png')
    part = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="teal.png"\r\n\r\n'
    content = part + (tmp_path / 'teal.png').read_bytes() + b'\r\n--edge--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=edge'}
    upload = urllib.request.Request(f'{address}gradio_api/upload', content, kind)
    file['path'] = json.loads(answer(upload))[0]
    assert 'teal.png (uploaded)' in sent(address, 'image_sent', file, *controls)
