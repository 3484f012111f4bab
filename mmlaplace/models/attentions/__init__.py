"""Token mixers, one mechanism per file. A new one is a file here and its line below."""

from .agent import AgentAttention as AgentAttention
from .base import BaseAttention as BaseAttention
from .base import Projected as Projected
from .base import QKVAttention as QKVAttention
from .flatten import FLattenAttention as FLattenAttention
from .frame import Frame as Frame
from .laplacian import LaplacianAttention as LaplacianAttention
from .pola import PolaAttention as PolaAttention
from .soft import SOFTAttention as SOFTAttention
from .softmax import SoftmaxAttention as SoftmaxAttention
from .window import WindowAttention as WindowAttention
from .xca import XCAttention as XCAttention
