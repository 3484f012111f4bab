"""What the tests of ONNX exports share."""

import io
import warnings

import torch

# fp32: products in another order, and an inverse by other steps, differ by far less.
TOLERANCE = 1e-4


def to_onnx(module, inputs, dynamo=False, dynamic=None):
    """The bytes of the ONNX file. ``dynamic`` has the names of dynamic axes of each input."""
    names = [f'input_{i}' for i in range(len(inputs))]
    file = io.BytesIO()
    options = dict(opset_version=17, input_names=names, output_names=['out'])
    if dynamo:
        axis = torch.export.Dim.DYNAMIC
        shapes = tuple(dict.fromkeys(axes, axis) for axes in dynamic) if dynamic else None
        # The new exporter has its own operators from opset 18 on.
        options.update(opset_version=18, dynamic_shapes=shapes, verbose=False)
    elif dynamic:
        options['dynamic_axes'] = dict(zip(names, dynamic))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of sizes that a trace compares
        if dynamo:
            torch.onnx.export(module, inputs, dynamo=True, **options).save(file)
        else:
            # torch 2.1 has no argument for the exporter that it only has.
            new = 'dynamo' in torch.onnx.export.__code__.co_varnames
            torch.onnx.export(module, inputs, file, **options, **dict(dynamo=False) if new else {})
    return file.getvalue()


def operators(content):
    """The domains of a file's operators; that of the standard is ``''``."""
    import onnx

    model = onnx.load_from_string(content)
    return {node.domain for node in model.graph.node}


def session(content):
    """A function of tensors that ONNX Runtime computes on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    runtime = onnxruntime.InferenceSession(content, options, providers=['CPUExecutionProvider'])

    def run(*inputs):
        names = [value.name for value in runtime.get_inputs()]
        return torch.from_numpy(runtime.run(None, dict(zip(names, (x.numpy() for x in inputs))))[0])

    return run


def assert_alike(out, expected):
    """Raise unless both are equal, relative to the largest value."""
    torch.testing.assert_close(
        out, expected, rtol=0, atol=TOLERANCE * expected.abs().max().item(), check_stride=False
    )
