"""Translate names in the JSON of TVM's targets: kinds without a backend here, libraries, and attributes that have no meaning here.

The names are those of TVM 0.19 to 0.27 (`target.ListTargetKindOptionsFromName`).
"""

from __future__ import annotations

KINDS_ELSEWHERE = (
    "vulkan",
    "metal",
    "rocm",
    "webgpu",
    "nvptx",
    "hexagon",
    "composite",
    "cuda_host",
    "ext_dev",
    "trn",
    "stackvm",
    "hybrid",
    "sdaccel",
    "aocl",
    "aocl_sw_emu",
)
"""Kinds of TVM without a backend here."""

_EVERY = (
    "device",
    "from_device",
    "target_device_type",
    "system-lib",
    "runtime",
    "link-params",
    "unpacked-api",
    "interface-api",
    "executor",
)
_FAST_MATH = ("fast-math", *[f"fast-math-{part}" for part in ("nnan", "ninf", "nsz", "arcp", "contract", "reassoc")])
_OF_KIND = {
    "llvm": ("model", "mfloat-abi", "mabi", "opt-level", "cl-opt", "jit", *_FAST_MATH),
    "c": ("model", "march", "workspace-byte-alignment", "constants-byte-alignment"),
    "cuda": ("mcpu", "registers_per_block"),
    "opencl": (
        "texture_spatial_limit",
        "texture_depth_limit",
        "max_function_args",
        "image_base_address_alignment",
    ),
}
_FEATURE = "feature."
"""Beginning of what TVM derives from the processor."""

TVM_LIBRARIES = ("cudnn", "cublas", "cublaslt", "cutlass", "thrust", "curand", "dnnl", "nnpack", "rocblas", "miopen", "clml", "edgetpu")
"""Libraries of TVM that nothing here offloads to."""
LIBRARIES = {"cblas": "blas", "mkl": "blas", "openblas": "blas"}
"""TVM's names of the library `blas`."""


def is_ignored(kind: str, name: str) -> bool:
    """Whether an attribute of TVM has no meaning for a target of a built-in kind.

    Args:
        kind: the built-in kind.
        name: the attribute, with `-` or `_`.
    """
    plain = name.replace("_", "-")
    return name.startswith(_FEATURE) or plain in {n.replace("_", "-") for n in (*_EVERY, *_OF_KIND[kind])}
