"""The peers by name.  Importing this table imports none of them; other packages add peers by entry points (`tunesmith.peer`)."""

from __future__ import annotations

from tunesmith.measure.peers.peer import Peer
from tunesmith.support.registry import Registry

PEERS: Registry[type[Peer]] = Registry(
    "peer",
    {
        "jax": "tunesmith.measure.peers.jax_peer:JaxPeer",
        "onnxruntime": "tunesmith.measure.peers.onnxruntime_peer:OnnxRuntimePeer",
        "onnxruntime_prepacked": "tunesmith.measure.peers.onnxruntime_peer:OnnxRuntimePrepackedPeer",
        "openblas": "tunesmith.measure.peers.numpy_peer:NumpyPeer",
        "torch": "tunesmith.measure.peers.torch_peer:TorchPeer",
        "torch_compile_cuda": "tunesmith.measure.peers.torch_peer:TorchCompileCudaPeer",
        "torch_cuda": "tunesmith.measure.peers.torch_peer:TorchCudaPeer",
        "torch_compile": "tunesmith.measure.peers.torch_peer:TorchCompilePeer",
        "tvm": "tunesmith.measure.peers.tvm_peer:TvmPeer",
        "tvm_tuned": "tunesmith.measure.peers.tvm_peer:TvmTunedPeer",
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
