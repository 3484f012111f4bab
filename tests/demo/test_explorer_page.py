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
SMALL = '?image=astronaut&size=64&stage=0&attention=LaplacianAttention'
pytestmark = pytest.mark.slow


def test_the_command_line_says_what_is_wrong():
    pytest.importorskip('gradio')
    assert '--model nowhere.py: ' in run_script(SCRIPT, '--model', 'nowhere.py').stderr
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        said = run_script(SCRIPT, '--port', taken.getsockname()[1])
    assert said.returncode == 2 and '--port' in said.stderr


def answer(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as response:
        return response.read()


def wait_for(what, seconds=60):
    """What a function gives, as soon as it is something."""
    for _ in range(10 * seconds):
        found = what()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f'not there after {seconds} s')


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

    def started():
        assert server.poll() is None, server.stdout.read()
        try:
            return answer(found)
        except urllib.error.URLError:
            return None

    try:
        wait_for(started)
        yield found
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


class Page:
    """The page in a browser without a window."""

    def __init__(self, address, downloads, program, driver):
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        options.binary_location = program
        for argument in ('--headless=new', '--no-sandbox', '--disable-dev-shm-usage'):
            options.add_argument(argument)
        options.add_argument('--window-size=1300,1000')
        options.add_experimental_option('prefs', {'download.default_directory': str(downloads)})
        self.browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        self.browser.get(address)
        wait_for(lambda: len(self.shown()) == 4 and self.in_address('x') == ['0.5'])

    def all_of(self, selector):
        return self.browser.find_elements('css selector', selector)

    def in_address(self, name):
        return parse_qs(urlparse(self.browser.current_url).query).get(name)

    def shown(self):
        """Texts and pictures of the panels, read at once, as they are replaced together."""
        return self.browser.execute_script(
            "return [...document.querySelectorAll('#cards figure')].map("
            "card => card.innerText + (card.querySelector('img') || {}).src)"
        )


@pytest.fixture
def page(tmp_path, address):
    pytest.importorskip('selenium.webdriver', reason='no selenium: pip install it')
    programs = [shutil.which(name) for name in ('chromium', 'chromedriver')]
    if None in programs:
        pytest.skip('no chromium or chromedriver: apt-get install chromium-driver')
    page = Page(address, tmp_path, *programs)
    yield page
    errors = [line for line in page.browser.get_log('browser') if line['level'] == 'SEVERE']
    page.browser.quit()
    assert not errors


def test_a_click_in_a_browser_shows_rows_that_can_be_sent_and_saved(page, tmp_path):
    from selenium.webdriver import ActionChains
    from selenium.webdriver.common.keys import Keys

    before, picture = page.shown(), page.all_of('#cards img.ask')[0]
    assert all('random weights' in text for text in before[1:])
    offset = round(-0.25 * picture.size['width'])
    ActionChains(page.browser).move_to_element_with_offset(picture, offset, 0).click().perform()
    wait_for(lambda: page.in_address('x') != ['0.5'])
    after = page.shown()
    assert all(one != other for one, other in zip(before, after))
    assert float(page.in_address('x')[0]) == pytest.approx(0.25, abs=0.01)  # a pixel or two
    page.browser.refresh()
    wait_for(lambda: page.shown() == after)

    y = page.in_address('y')
    page.all_of('#cards img.ask')[1].send_keys(Keys.ARROW_DOWN)
    wait_for(lambda: page.in_address('y') != y)
    assert float(page.in_address('y')[0]) == pytest.approx(float(y[0]) + 1 / 32, abs=1e-3)
    focused = page.browser.execute_script('return document.activeElement.alt')
    assert focused == 'row of LaplacianAttention on laplacianformer'  # the picture is another

    for format in ('png', 'svg'):
        page.all_of(f'#save-{format}')[0].click()
        wait_for((tmp_path / f'attention_rows.{format}').is_file)
    assert Image.open(tmp_path / 'attention_rows.png').width > 500
    assert b'<svg' in (tmp_path / 'attention_rows.svg').read_bytes()


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
    for said in (
        sent(address, 'changed', file, *controls[1:]),
        sent(address, 'image_sent', file, *controls),
    ):
        assert not re.findall(r'/gradio_api/file=[^\'"]+', said)
        assert 'it was not uploaded by a user' in said

    Image.new('RGB', (80, 60), 'teal').save(tmp_path / 'teal.png')
    part = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="teal.png"\r\n\r\n'
    content = part + (tmp_path / 'teal.png').read_bytes() + b'\r\n--edge--\r\n'
    kind = {'Content-Type': 'multipart/form-data; boundary=edge'}
    upload = urllib.request.Request(f'{address}gradio_api/upload', content, kind)
    file['path'] = json.loads(answer(upload))[0]
    assert 'teal.png (uploaded)' in sent(address, 'image_sent', file, *controls)
