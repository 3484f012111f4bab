"""The explorer's page in a real browser, and the server that it comes from."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from urllib.parse import parse_qs, urlparse

import pytest
from conftest import ROOT, run_script
from PIL import Image

SCRIPT = ROOT / 'demo/attention_explorer.py'
LAPLACIAN = ROOT / 'configs/classification/laplacianformer/laplacianformer-micro_1xb32_mini.py'
SMALL = '?image=astronaut&size=64&stage=0&attention=LaplacianAttention'
pytestmark = pytest.mark.slow


def test_the_command_line_says_what_is_wrong():
    pytest.importorskip('gradio')
    said = run_script(SCRIPT, '--model', 'nowhere.py')
    assert '--model nowhere.py: ' in said.stderr
    said = run_script(SCRIPT, '--model', LAPLACIAN, '--model', LAPLACIAN)
    assert f'two are named {LAPLACIAN.stem}; give a name' in said.stderr
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        said = run_script(SCRIPT, '--port', taken.getsockname()[1])
    assert 'take another --port' in said.stderr
    assert said.returncode == 2


def test_gradio_writes_no_types_for_those_who_write_components():
    pytest.importorskip('gradio')
    import inspect

    from explorer.quick_gradio import gradio, no_file

    with pytest.raises(OSError, match='HTML'):
        no_file(gradio.HTML)
    assert no_file(pytest.Item) == inspect.getfile(pytest.Item)
    assert inspect.getfile is not no_file  # after the import


def answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        return response.read()


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
        env={**os.environ, 'PYTHONPATH': str(ROOT)}, stderr=subprocess.STDOUT,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    found = f'http://127.0.0.1:{port}/'
    try:
        for _ in range(300):
            try:
                answer(found)
                break
            except urllib.error.URLError:
                assert server.poll() is None, server.stdout.read()
                time.sleep(0.2)
        yield found
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


@pytest.fixture
def browser(tmp_path):
    webdriver = pytest.importorskip('selenium.webdriver', reason='no selenium: pip install it')
    programs = [shutil.which(name) for name in ('chromium', 'chromedriver')]
    if None in programs:
        pytest.skip('no chromium or chromedriver: apt-get install chromium-driver')
    options = webdriver.ChromeOptions()
    options.binary_location = programs[0]
    for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage'):
        options.add_argument(argument)
    options.add_argument('--window-size=1300,1000')
    options.add_experimental_option('prefs', {'download.default_directory': str(tmp_path)})
    service = webdriver.ChromeService(programs[1])
    browser = webdriver.Chrome(options=options, service=service)
    yield browser
    browser.quit()


def wait_for(what, seconds=30):
    """What a function gives, as soon as it is something."""
    for _ in range(10 * seconds):
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f'not there after {seconds} s')


def test_a_click_in_a_browser_shows_rows_that_can_be_sent_and_saved(address, browser, tmp_path):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    def all_of(selector):
        return browser.find_elements(By.CSS_SELECTOR, selector)

    def in_address(name):
        return parse_qs(urlparse(browser.current_url).query).get(name)

    def shown():
        """Texts and pictures of the panels, read at once, as they are replaced together."""
        return browser.execute_script(
            "return [...document.querySelectorAll('#cards figure')].map("
            "card => card.innerText + (card.querySelector('img') || {}).src)"
        )

    def alert():
        return ''.join(found.text for found in all_of('[role=alert]'))

    browser.get(address)
    wait_for(lambda: len(shown()) == 4 and in_address('x') == ['0.5'])
    assert all('random weights' in text for text in shown()[1:])
    assert in_address('attention') == ['LaplacianAttention', 'SoftmaxAttention', 'PolaAttention']

    before, picture = shown(), all_of('#cards img.ask')[0]
    offset = round(-0.25 * picture.size['width'])
    ActionChains(browser).move_to_element_with_offset(picture, offset, 0).click().perform()
    wait_for(lambda: in_address('x') != ['0.5'])
    after = shown()
    assert all(one != other for one, other in zip(before, after))
    assert float(in_address('x')[0]) == pytest.approx(0.25, abs=0.01)  # a pixel or two

    browser.refresh()
    wait_for(lambda: shown() == after)

    y = in_address('y')
    all_of('#cards img.ask')[1].send_keys(Keys.ARROW_DOWN)
    wait_for(lambda: in_address('y') != y)
    assert float(in_address('y')[0]) == pytest.approx(float(y[0]) + 1 / 32, abs=1e-3)
    focused = browser.execute_script('return document.activeElement.alt')
    assert focused == 'row of LaplacianAttention on laplacianformer'  # the picture is another
    after = shown()

    for format in ('png', 'svg'):
        all_of(f'#save-{format}')[0].click()
        file = tmp_path / f'attention_rows.{format}'
        wait_for(file.is_file)
    assert Image.open(tmp_path / 'attention_rows.png').width > 500
    assert b'<svg' in (tmp_path / 'attention_rows.svg').read_bytes()

    (tmp_path / 'broken.png').write_text('no image')
    upload = all_of('#upload-image ~ input[type=file], #upload-image input[type=file]') or all_of(
        'input[type=file]'
    )
    upload[0].send_keys(str(tmp_path / 'broken.png'))
    wait_for(lambda: 'broken.png cannot be read as an image' in alert())
    assert shown() == after

    Image.new('RGB', (80, 60), 'teal').save(tmp_path / 'teal.png')
    upload[0].send_keys(str(tmp_path / 'teal.png'))
    wait_for(lambda: in_address('image')[0].startswith('upload-'))
    assert not alert()
    browser.get(f'{address}?x=1.5')
    wait_for(lambda: 'the query x=1.5 is outside of the image' in alert())
    errors = [line for line in browser.get_log('browser') if line['level'] == 'SEVERE']
    assert not errors


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

    def file(path) -> dict:
        return dict(path=str(path), meta=dict(_type='gradio.FileData'))

    secret = tmp_path / 'secret.txt'
    secret.write_text('secret')
    for said in (
        sent(address, 'changed', file(secret), *controls[1:]),
        sent(address, 'image_sent', file(secret), *controls),
    ):
        assert not re.findall(r'/gradio_api/file=[^\'"]+', said)
        assert 'it was not uploaded by a user' in said

    Image.new('RGB', (80, 60), 'teal').save(tmp_path / 'teal.png')
    part = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="teal.png"\r\n\r\n'
    content = part + (tmp_path / 'teal.png').read_bytes() + b'\r\n--edge--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=edge'}
    upload = urllib.request.Request(f'{address}gradio_api/upload', content, kind)
    (place,) = json.loads(answer(upload))
    assert 'teal.png (uploaded)' in sent(address, 'image_sent', file(place), *controls)
