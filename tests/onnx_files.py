"""What the tests of ONNX exports share."""

import io
import warnings

import torch

# fp32: products in another order, and an inverse by other steps, differ by far less.
TOLERANCE = 1e-4


def to_onnx(module, inputs, dynamo=False, dynamic=None):
    """The bytes of the ONNX file. ``dynamic`` has the names of dynamic axes of each input."""
    names = [f'input_{i}' for i in range(len(inputs))]
    options, file = dict(opset_version=17, input_names=names, output_names=['out']), io.BytesIO()
    if dynamo:  # which has its own operators from opset 18 on
        axis = torch.export.Dim.DYNAMIC
        shapes = tuple(dict.fromkeys(axes, axis) for axes in dynamic) if dynamic else None
        options.update(opset_version=18, dynamic_shapes=shapes, verbose=False, dynamo=True)
    else:
        options.update(dynamic_axes=dict(zip(names, dynamic or ())))
        if 'dynamo' in torch.onnx.export.__code__.co_varnames:  # not in torch 2.1
            options.update(dynamo=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of sizes that a trace compares
        if dynamo:
            torch.onnx.export(module, inputs, **options).save(file)
        else:
            torch.onnx.export(module, inputs, file, **options)
    return file.getvalue()


def operators(content):
    """The domains of a file's operators; that of the standard is ``''``."""
    import onnx

    return {node.domain for node in onnx.load_from_string(content).graph.node}


def session(content):
    """A function of tensors that ONNX Runtime computes on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    runtime = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])

    def run(*inputs):
        given = {value.name: x.numpy() for value, x in zip(runtime.get_inputs(), inputs)}
        return torch.from_numpy(runtime.run(None, given)[0])

    return run


def assert_alike(out, expected):
    """Raise unless both are equal, relative to the largest value."""
    torch.testing.assert_close(
        out, expected, rtol=0, atol=TOLERANCE * expected.abs().max().item(), check_stride=False
    )
