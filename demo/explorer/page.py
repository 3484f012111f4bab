"""The page of the explorer, and the server that it comes from."""

from pathlib import Path
from threading import Lock
from typing import List, Optional, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from .cards import STYLE, cards, links, message
from .images import fitted
from .models import ATTENTIONS, HOSTS
from .pictures import exported
from .quick_gradio import gradio as gr
from .rows import Explorer, Offered
from .view import LAST, SCALES, SIZES, View

MEDIA = {'png': 'image/png', 'svg': 'image/svg+xml'}
LARGEST_UPLOAD = '256mb'  # of a checkpoint; images have a limit of their own
INTRODUCTION = """# Attention explorer
An attention gives a query a weighted sum of values. **Click on a pixel** to see from where its \
query takes, as the exact row of each attention's matrix. The address of this page holds the view, \
so it can be sent."""
# The place of a click as shares of the picture's width and height. Arrow keys move it, and the
# picture keeps the focus when it is replaced.
ASK = """const ask = (x, y) => {
  const share = (value) => Math.min(0.9999, Math.max(0, value));
  trigger('select', {value: null, index: [share(x), share(y)]});
};
element.addEventListener('click', (event) => {
  const picture = event.target.closest('img.ask');
  if (!picture) return;
  const box = picture.getBoundingClientRect();
  ask((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
});
const pictures = () => [...element.querySelectorAll('img.ask')];
const steps = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};
let focused = -1;
element.addEventListener('keydown', (event) => {
  const picture = event.target.closest('img.ask'), step = steps[event.key];
  if (!picture || !step) return;
  event.preventDefault();
  focused = pictures().indexOf(picture);
  ask(+picture.dataset.x + step[0] / 32, +picture.dataset.y + step[1] / 32);
});
new MutationObserver(() => {
  if (focused >= 0) pictures()[focused]?.focus();
  focused = -1;
}).observe(element, {childList: true, subtree: true});"""
# What gradio itself has in the address, such as the theme, stays there.
INTO_ADDRESS = """(address) => {
  if (!address) return;
  const next = new URLSearchParams(address);
  for (const [name, value] of new URLSearchParams(location.search))
    if (name.startsWith('__')) next.append(name, value);
  history.replaceState(null, '', '?' + next);
}"""


def numbered(count: int, chosen: int, first: Sequence[tuple] = ()) -> list:
    """Choices from 0 on, and the one that an address names, however large."""
    numbers = list(range(count))
    if chosen >= count:
        numbers.append(chosen)
    return [*first, *((str(number), number) for number in numbers)]


class Page:
    """Components, and what happens when they change.

    Args:
        explorer: What computes.
        default: The view of an address that names none.
    """

    def __init__(self, explorer: Explorer, default: View) -> None:
        self.explorer = explorer
        self.default = default
        with gr.Blocks(
            title='Attention explorer', analytics_enabled=False, fill_width=True
        ) as self.blocks:
            self._lay_out()
            self._connect()

    def _lay_out(self) -> None:
        gr.Markdown(INTRODUCTION)
        self.message = gr.HTML(elem_id='message')
        with gr.Row():
            with gr.Column(scale=1, min_width=310, elem_id='controls'):
                self._lay_out_controls()
            with gr.Column(scale=4, min_width=300, elem_id='pictures'):
                self.cards = gr.HTML(js_on_load=ASK, elem_id='cards')
                self.links = gr.HTML()
        self.address = gr.Textbox(visible='hidden', elem_id='view')

    def _lay_out_controls(self) -> None:
        # The page asks the models for their blocks when it is opened, so the server starts sooner.
        default = self.default
        offered = Offered()
        many = dict(multiselect=True, filterable=True)
        self.image = gr.Dropdown(self.explorer.images.choices(), value=default.image, label='Image')
        self.upload = gr.UploadButton('Upload an image', size='sm', elem_id='upload-image')
        self.trained = gr.Dropdown(
            list(self.explorer.models.sources),
            value=list(default.trained),
            elem_id='trained',
            label='Trained or given models',
            **many,
        )
        self.attention = gr.Dropdown(
            list(ATTENTIONS),
            value=list(default.attention),
            elem_id='attentions',
            label='Attentions, with random weights',
            **many,
        )
        self.host = gr.Dropdown(
            list(HOSTS), value=list(default.host), label='… in these backbones', **many
        )
        with gr.Row():
            self.stage = gr.Dropdown(
                numbered(offered.stages, default.stage),
                value=default.stage,
                label='Stage',
                min_width=70,
            )
            self.block = gr.Dropdown(
                numbered(offered.blocks, default.block, [('last', LAST)]),
                value=default.block,
                label='Block',
                min_width=70,
            )
            self.head = gr.Dropdown(
                numbered(offered.heads, default.head),
                value=default.head,
                label='Head',
                min_width=70,
            )
        self.matrix = gr.CheckboxGroup(
            list(offered.matrices),
            value=list(default.matrix),
            label='Matrix, where there are several',
            visible=bool(offered.matrices),
        )
        self.scale = gr.Radio(list(SCALES), value=default.scale, label='Colour scale')
        with gr.Accordion('Size of the image, place of the query', open=False):
            self.size = gr.Dropdown(
                list(SIZES), value=default.size, label='Longer side for the model, pixels'
            )
            with gr.Row():
                self.x = gr.Number(
                    default.x, label='x, share of the width', step=0.01, min_width=90, elem_id='x'
                )
                self.y = gr.Number(
                    default.y, label='y, share of the height', step=0.01, min_width=90, elem_id='y'
                )
        with gr.Accordion('Add a checkpoint', open=False):
            self.new_attention = gr.Dropdown(
                list(ATTENTIONS), value='LaplacianAttention', label='Trained with the attention'
            )
            self.new_host = gr.Dropdown(list(HOSTS), value='laplacianformer', label='… on the host')
            self.new_side = gr.Dropdown(
                sorted({48, *SIZES}), value=64, label='… and images of a side of, pixels'
            )
            self.new_checkpoint = gr.UploadButton(
                'Upload its checkpoint', size='sm', elem_id='upload-checkpoint'
            )

    def _connect(self) -> None:
        # In the order of View's fields.
        self.controls = [
            self.image,
            self.size,
            self.x,
            self.y,
            self.trained,
            self.attention,
            self.host,
            self.stage,
            self.block,
            self.head,
            self.matrix,
            self.scale,
        ]
        outputs = [*self.controls, self.message, self.cards, self.links, self.address]
        quietly = dict(outputs=outputs, show_progress='hidden', api_visibility='private')
        events = [
            self.blocks.load(
                self.opened,
                self.address,
                js='() => location.search',
                **{**quietly, 'show_progress': 'minimal'},
            ),
            self.cards.select(self.clicked, self.controls, trigger_mode='always_last', **quietly),
            self.upload.upload(self.image_sent, [self.upload, *self.controls], **quietly),
            self.new_checkpoint.upload(
                self.checkpoint_sent,
                [
                    self.new_checkpoint,
                    self.new_attention,
                    self.new_host,
                    self.new_side,
                    *self.controls,
                ],
                **quietly,
            ),
        ]
        for control in self.controls:
            changes = [control.input]
            if control in (self.x, self.y):  # a number is complete when its field is left
                changes = [control.submit, control.blur]
            for change in changes:
                events.append(
                    change(self.changed, self.controls, trigger_mode='always_last', **quietly)
                )
        for event in events:
            event.then(None, self.address, js=INTO_ADDRESS, show_progress='hidden')

    # What the events do. Each gives the values of all outputs.

    def opened(self, address: str) -> list:
        try:
            view = View.from_address(address, self.default)
        except ValueError as error:
            return self.failed(error, self.default)
        return self.shown(view)

    def clicked(self, event: gr.SelectData, *controls) -> list:
        x, y = event.index
        values = self.changed(*controls[:2], round(x, 4), round(y, 4), *controls[4:])
        for index, control in enumerate(self.controls):
            if control not in (self.x, self.y):
                values[index] = gr.skip()  # the page answers sooner
        return values

    def image_sent(self, path: str, *controls) -> list:
        try:
            key = self.explorer.images.add(Path(path), Path(path).name)
        except ValueError as error:
            return self.failed(error)
        return self.changed(key, *controls[1:])

    def checkpoint_sent(self, path: str, attention: str, host: str, side: int, *controls) -> list:
        try:
            file = Path(path)
            name = self.explorer.models.add(file, file.name, attention, host, side)
        except ValueError as error:
            return self.failed(error)
        chosen = list(dict.fromkeys([*(controls[4] or []), name]))
        return self.changed(*controls[:4], chosen, *controls[5:])

    def changed(self, *controls) -> list:
        image, size, x, y, trained, attention, host, stage, block, head, matrix, scale = controls
        several = (tuple(names or ()) for names in (trained, attention, host))
        try:
            if None in (x, y):
                raise ValueError('the query has no place; click on the image, or fill in x and y')
            view = View(image, size, x, y, *several, stage, block, head, tuple(matrix or ()), scale)
        except ValueError as error:
            return self.failed(error)
        return self.shown(view)

    def failed(self, error: ValueError, instead: Optional[View] = None) -> list:
        """A message, above what was there or above another view. The address stays as it is."""
        if instead is not None:
            values = self.shown(instead)
        else:
            values = [gr.skip()] * (len(self.controls) + 4)
        values[-4] = message(str(error))
        values[-1] = ''
        return values

    def shown(self, view: View) -> List:
        """A view, or a message that says why there is none."""
        explorer = self.explorer
        images = explorer.images.choices()
        trained = list(explorer.models.sources)
        offered = explorer.offered(view)
        panels = []
        said, drawn, saved = '', '', ''
        try:
            panels = explorer.panels(view)
            image = explorer.images.get(view.image)
            drawn = cards(image, panels, view, fitted(image, view.size))
            saved = links(view)
        except ValueError as error:
            said = str(error)
        matrices = {panel.matrix for panel in panels}.intersection(offered.matrices)
        here = view.image in dict(images).values()
        # A control refuses what is not among its choices, so that names of an address may not be.
        return [
            gr.Dropdown(images, value=view.image if here else self.default.image),
            view.size,
            view.x,
            view.y,
            gr.Dropdown(trained, value=[name for name in view.trained if name in trained]),
            [name for name in view.attention if name in ATTENTIONS],
            [name for name in view.host if name in HOSTS],
            gr.Dropdown(numbered(offered.stages, view.stage), value=view.stage),
            gr.Dropdown(numbered(offered.blocks, view.block, [('last', LAST)]), value=view.block),
            gr.Dropdown(numbered(offered.heads, view.head), value=view.head),
            gr.CheckboxGroup(
                list(offered.matrices), value=sorted(matrices), visible=bool(offered.matrices)
            ),
            view.scale,
            message(said),
            drawn,
            saved,
            view.address(),
        ]


def server(explorer: Explorer, default: View) -> FastAPI:
    """The page at ``/``, and pictures of views at ``/rows.png?…`` and ``/rows.svg?…``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    drawing = Lock()

    @app.get('/rows.{format}')
    def rows(format: str, request: Request) -> Response:
        if format not in MEDIA:
            return PlainTextResponse(f'rows.{format}: choose rows.png or rows.svg', 404)
        try:
            view = View.from_address(request.url.query, default)
            panels = explorer.panels(view)
            image = explorer.images.get(view.image)
        except ValueError as error:
            return PlainTextResponse(str(error), 400)
        with drawing:  # matplotlib is not made for threads
            content = exported(image, panels, view, fitted(image, view.size), format)
        return Response(content, media_type=MEDIA[format])

    theme = gr.themes.Default(font=['system-ui', 'sans-serif'], font_mono=['monospace'])
    page = Page(explorer, default).blocks
    page.queue(api_open=False)
    # gradio looks whether a file was uploaded only in pages that are launched, which a mounted one
    # is not: whoever sends the path of any file of this machine as an upload would get it.
    page.has_launched = page.is_running = True
    return gr.mount_gradio_app(
        app,
        page,
        path='/',
        theme=theme,
        css=STYLE,
        footer_links=[],
        ssr_mode=False,
        max_file_size=LARGEST_UPLOAD,
    )
