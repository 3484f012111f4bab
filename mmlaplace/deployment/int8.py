"""Files of classifiers whose linears and convolutions are in int8, for ONNX Runtime and OpenVINO.

Activations get their ranges from images. Kernels, inverses, normalisers and products of two
activations stay in floating point, and so do our operators.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, List, Sequence

from torch import Tensor

from ..dependencies import missing_package
from ..writing import whole_file

# Through these, a weight reaches the product that it is for.
BETWEEN = ('Convert', 'Reshape', 'Transpose', 'Multiply', 'FakeQuantize')


def products_of_activations(path: Path) -> List[str]:
    """Names of an ONNX file's products without a weight: of kernels, inverses and attentions.

    Sums over tokens are among them, as products with ones.
    """
    import onnx

    graph = onnx.load(str(path)).graph
    weights = {
        tensor.name
        for tensor in graph.initializer
        if len(tensor.dims) == 2 and not (onnx.numpy_helper.to_array(tensor) == 1).all()
    }
    return [
        node.name
        for node in graph.node
        if node.op_type in ('MatMul', 'Gemm') and node.input[1] not in weights
    ]


def quantize_onnx(source: Path, out: Path, images: Sequence[Tensor]) -> None:
    """Write an ONNX file in int8, by the static quantisation of ONNX Runtime.

    Args:
        source: The file in fp32. Its metadata stay.
        out: The file in int8.
        images: Images ``(1, C, H, W)`` as the file takes them.
    """
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Images(quantization.CalibrationDataReader):
        left = iter(images)

        def get_next(self) -> Any:
            image = next(self.left, None)
            return None if image is None else dict(images=image.numpy())

    with TemporaryDirectory() as folder:
        prepared, quantized = Path(folder, 'prepared.onnx'), Path(folder, 'quantized.onnx')
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared),
            str(quantized),
            Images(),
            op_types_to_quantize=['Conv', 'MatMul', 'Gemm'],
            nodes_to_exclude=products_of_activations(prepared),
            per_channel=True,
        )
        model = onnx.load(str(quantized))
    del model.metadata_props[:]
    model.metadata_props.extend(onnx.load(str(source), load_external_data=False).metadata_props)
    with whole_file(out) as temporary:
        onnx.save(model, str(temporary))


def require_nncf() -> Any:
    """The package NNCF, or an ImportError that names the extra that installs it."""
    try:
        import nncf
    except ImportError as error:
        raise missing_package('nncf', 'int8', error) from error
    nncf.set_log_level(logging.ERROR)
    return nncf


def in_int8(model: Any, images: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Any:
    """A model of OpenVINO in int8, by NNCF.

    Args:
        model: As OpenVINO reads it, in fp32.
        images: Images ``(1, C, H, W)`` as the model takes them.
        others: Its further inputs, the same for each image. Default: ().

    Raises:
        ImportError: If NNCF is not installed. The message names the extra.
    """
    nncf = require_nncf()
    given = nncf.Dataset(
        list(images), lambda image: {i: x.numpy() for i, x in enumerate((image, *others))}
    )
    return nncf.quantize(
        model,
        given,
        subset_size=len(images),
        model_type=nncf.ModelType.TRANSFORMER,
        ignored_scope=nncf.IgnoredScope(names=unweighted(model), validate=False),
    )


def unweighted(model: Any) -> List[str]:
    """Names of the products of a model of OpenVINO that have no weight, but two activations."""
    return [
        node.get_friendly_name()
        for node in model.get_ops()
        if node.get_type_name() == 'MatMul'
        and not any(is_weight(value.get_node()) for value in node.input_values())
    ]


def is_weight(node: Any) -> bool:
    """Whether a node of OpenVINO is a constant of two axes, perhaps converted or transposed.

    A column of ones, by which a product sums over tokens, is no weight.
    """
    kind = node.get_type_name()
    if kind == 'Constant':
        shape = list(node.get_output_shape(0))
        return len(shape) == 2 and min(shape) > 1
    if kind not in BETWEEN:
        return False
    inputs = [value.get_node() for value in node.input_values()]
    return all(each.get_type_name() == 'Constant' or is_weight(each) for each in inputs) and any(
        map(is_weight, inputs)
    )
