"""The peers by name.  Importing this table imports none of them; other packages add peers by entry points (`tunesmith.peer`)."""

from __future__ import annotations

from tunesmith.measure.baselines.baseline import Peer
from tunesmith.support.registry import Registry

PEERS: Registry[type[Peer]] = Registry(
    "peer",
    {
        "jax": "tunesmith.measure.baselines.jax:JaxPeer",
        "onnxruntime": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimePeer",
        "onnxruntime_prepacked": "tunesmith.measure.baselines.onnxruntime:OnnxRuntimePrepackedPeer",
        "openblas": "tunesmith.measure.baselines.numpy:NumpyPeer",
        "torch": "tunesmith.measure.baselines.torch:TorchPeer",
        "torch_compile_cuda": "tunesmith.measure.baselines.torch:TorchCompileCudaPeer",
        "torch_cuda": "tunesmith.measure.baselines.torch:TorchCudaPeer",
        "torch_compile": "tunesmith.measure.baselines.torch:TorchCompilePeer",
        "tvm": "tunesmith.measure.baselines.tvm:TvmPeer",
        "tvm_tuned": "tunesmith.measure.baselines.tvm:TvmTunedPeer",
    },
)


ON_GPU = {"torch": "torch_cuda", "torch_compile": "torch_compile_cuda"}
"""Peers that are asked for by name where the target is an NVIDIA GPU, and who they are there."""


def create_peer(name: str, threads: int) -> Peer:
    """The peer of that name, to run on so many threads.  Whether it can be used tells its `available()`.

    Raises:
        UserError: there is no such peer; the message lists the known ones.
    """
    return PEERS.get(name)(threads)
