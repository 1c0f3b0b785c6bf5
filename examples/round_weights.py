"""Write a graph pass that rounds the weights of a model, insert it into the default pipeline, and compare the accuracy.

The pass rounds the constant operand of products and convolutions to 2**bits values, symmetric around 0, with one scale for each output
channel.  The weights stay float32: the example shows what quantised weights cost in accuracy, before anything is done for speed.

    python examples/round_weights.py
"""

import numpy as np

import tunesmith
from tunesmith.debug import first_difference
from tunesmith.graph.ir.builder import GraphBuilder
from tunesmith.graph.ir.function import GraphFunc
from tunesmith.graph.ir.node import Call, Constant
from tunesmith.graph.ir.rewrite import Rewriter
from tunesmith.instruments import PrintPasses
from tunesmith.ir.function import IRModule
from tunesmith.passes import GRAPH, PassContext, Pipeline, module_pass


class RoundWeights(Rewriter):
    """A `Rewriter` visits the operations of a function in order; `visit` returns their replacements, or None to keep them."""

    def __init__(self, bits):
        super().__init__()
        self.largest = 2 ** (bits - 1) - 1

    def visit(self, operation, build):
        if not isinstance(operation, Call) or operation.operator not in ("conv2d", "matmul"):
            return None
        x, w, *more = operation.args
        if not isinstance(w, Constant) or w.type.dtype != "float32":
            return None
        # Filters of NCHW images are [output channels, ...]; those of NHWC images, and matrices, have the output channels last.
        first = operation.operator == "conv2d" and operation.attr("layout") == "NCHW"
        others = tuple(range(1, w.data.ndim) if first else range(w.data.ndim - 1))
        scale = np.maximum(np.abs(w.data).max(axis=others, keepdims=True), 1e-30) / self.largest
        rounded = (np.round(w.data / scale) * scale).astype(np.float32)
        if np.array_equal(rounded, w.data):
            return None  # nothing changed: the pass returns the same object when it is run again
        return [build.call(operation.operator, x, build.constant(rounded, w.name), *more, **operation.keywords)]


@module_pass
def round_weights(mod, *, bits=8):
    """Round the weights of products and convolutions to 2**bits values for each output channel.

    A module pass gets an IRModule and returns one; it never changes what it gets.  Keyword-only parameters are its options.
    """
    return mod.update({name: RoundWeights(bits)(f) for name, f in mod.items() if isinstance(f, GraphFunc)})


def network():
    """A small convolutional network with seeded weights."""
    random = np.random.default_rng(0)

    def weights(*shape):
        return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    b = GraphBuilder("main")
    x = b.input("image", (1, 3, 16, 16))
    for k, (channels, before) in enumerate([(8, 3), (16, 8), (16, 16)]):
        x = b.relu(b.conv2d(x, b.constant(weights(channels, before, 3, 3), f"w{k}"), padding=(1, 1, 1, 1), layout="NCHW"))
    features = b.mean(x, axes=(2, 3))
    return IRModule({"main": b.finish(b.softmax(b.matmul(features, b.constant(weights(10, 16).T.copy(), "classes"))))})


def main():
    model = network()
    images = np.random.default_rng(1).standard_normal((32, 1, 3, 16, 16)).astype(np.float32)

    # Pipelines are values: this one rounds after the scales of norms are folded into the weights.  GRAPH itself stays as it is.
    pipeline = GRAPH.insert_after("fold_scale_axis", round_weights)
    print(pipeline.names[5:8])

    exact = tunesmith.compile(model)
    expected = np.concatenate([exact(image) for image in images])
    for bits in (8, 6, 4):
        # Options of passes can be set from outside, by the name of the pass.
        with PassContext(options={"round_weights": {"bits": bits}}):
            rounded = tunesmith.compile(model, pipeline=pipeline)
        found = np.concatenate([rounded(image) for image in images])
        same = np.mean(found.argmax(axis=1) == expected.argmax(axis=1))
        print(f"{bits} bits: largest error {np.abs(found - expected).max():.4f}, the same class for {same:.0%} of the images")

    # A pass that rounds changes results, and the debugger says where first, with the error there.
    print(first_difference(model, tunesmith.compile(model, pipeline=pipeline), images[0], rtol=1e-4))

    # An optional pass can be left out by its name, and an instrument shows what it would do.
    with PassContext(disabled=["round_weights"]):
        assert np.array_equal(tunesmith.compile(model, pipeline=pipeline)(images[0]), expected[:1])
    with PassContext(instruments=[PrintPasses("round_weights")]):
        round_only = Pipeline(round_weights)(model, tunesmith.Target.detect())
    assert round_weights(round_only, tunesmith.Target.detect())["main"] is round_only["main"]
    print("left out: equal to the exact model")


if __name__ == "__main__":
    main()
