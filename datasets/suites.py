"""Define suites: named lists of workloads shared by studies, data sets and benchmarks.

Shapes are those of published suites and models, as far as the operators of `ops/` can express them.  Ansor's are those of its public
benchmark (`shape_configs.py` of the artifact of Zheng et al., OSDI 2020), MetaSchedule's those of the paper's appendix (Shao et al.).
On the command line, `suite:NAME` is accepted in place of a workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tunesmith.support.errors import UserError
from tunesmith.support.registry import Registry, instance_of

PREFIX = "suite:"


@dataclass(frozen=True, slots=True)
class Suite:
    """A list of workloads.

    Attributes:
        about: one-line description.
        workloads: distinct workloads, as texts.
    """

    about: str
    workloads: tuple[str, ...]

    def __post_init__(self) -> None:
        if isinstance(self.workloads, str) or not all(isinstance(w, str) for w in self.workloads):
            raise UserError(f"the workloads of a suite are a tuple of texts, not {self.workloads!r:.80}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.workloads)

    def __len__(self) -> int:
        return len(self.workloads)


SUITES: Registry[Suite] = Registry("suite", contract=instance_of(Suite))
"""All suites by name; other packages add suites through the entry point group `tunesmith.suite`."""


def expand(text: str) -> tuple[str, ...]:
    """The workloads of `suite:NAME`; any other text is returned unchanged.

    Raises:
        UserError: there is no suite of that name; the message lists all names, and the nearest.
    """
    if not text.startswith(PREFIX):
        return (text,)
    name = text.removeprefix(PREFIX).strip()
    if not name:
        raise UserError(f"{text!r} names no suite. Known: {', '.join(SUITES.names())}")
    return SUITES.get(name).workloads


def _conv(size: int, ci: int, co: int, kernel: int, stride: int = 1, more: str = "") -> str:
    """A convolution of a square image, padded to preserve its size up to the stride."""
    pad = f",pad={kernel // 2}" if kernel > 1 else ""
    strided = f",stride={stride}" if stride > 1 else ""
    return f"conv2d(n=1,h={size},w={size},ci={ci},co={co},kh={kernel},kw={kernel}{strided}{pad}{more})"


RELU = ",bias=1,relu=1"
JOIN = ",bias=1,relu=1,residual=1"
BIAS = ",bias=1"


def _resnet18() -> list[str]:
    out = [_conv(224, 3, 64, 7, 2, RELU), _conv(56, 64, 64, 3, 1, RELU), _conv(56, 64, 64, 3, 1, JOIN)]
    for size, ci, co in ((56, 64, 128), (28, 128, 256), (14, 256, 512)):
        out += [_conv(size, ci, co, 3, 2, RELU), _conv(size, ci, co, 1, 2, BIAS)]
        out += [_conv(size // 2, co, co, 3, 1, RELU), _conv(size // 2, co, co, 3, 1, JOIN)]
    return [*out, "dense(m=1,n=1000,k=512)"]


def _resnet50() -> list[str]:
    out = [_conv(224, 3, 64, 7, 2, RELU)]
    for size, ci, mid, stride in ((56, 64, 64, 1), (56, 256, 128, 2), (28, 512, 256, 2), (14, 1024, 512, 2)):
        inner = size // stride
        out += [_conv(size, ci, mid, 1, 1, RELU), _conv(size, mid, mid, 3, stride, RELU), _conv(inner, mid, 4 * mid, 1, 1, JOIN)]
        out += [_conv(size, ci, 4 * mid, 1, stride, BIAS), _conv(inner, 4 * mid, mid, 1, 1, RELU), _conv(inner, mid, mid, 3, 1, RELU)]
    return [*out, "dense(m=1,n=1000,k=2048)"]


def _mobilenet_v2() -> list[str]:
    out = [_conv(224, 3, 32, 3, 2, RELU)]
    size, ci = 112, 32
    for expansion, co, repeats, first in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for i in range(repeats):
            stride, wide = first if i == 0 else 1, expansion * ci
            if expansion > 1:
                out.append(_conv(size, ci, wide, 1, 1, RELU))
            out.append(_conv(size, wide, wide, 3, stride, f",groups={wide}{RELU}"))
            size //= stride
            out.append(_conv(size, wide, co, 1, 1, ",bias=1,residual=1" if stride == 1 and ci == co else BIAS))
            ci = co
    return [*out, _conv(size, ci, 1280, 1, 1, RELU), "dense(m=1,n=1000,k=1280)"]


_GEMM = [f"matmul(m={n},n={n},k={n})" for n in (512, 1024, 2048)] + [
    "matmul(m=16,n=4096,k=1024)",
    "dense(m=128,n=3072,k=768,activation=gelu)",
    "batch_matmul(b=12,m=128,n=128,k=64)",
]
_CONV = [_conv(56, 64, 64, 3), _conv(28, 128, 128, 3), _conv(14, 256, 256, 3), _conv(7, 512, 512, 3), _conv(56, 64, 256, 1)]
_CONV += [_conv(224, 3, 64, 7, 2), _conv(56, 64, 64, 3, 1, RELU)]
_DEPTHWISE = [_conv(112, 32, 32, 3, 1, ",groups=32"), _conv(14, 384, 384, 3, 1, ",groups=384")]
_ROWS = ["softmax(m=1024,n=1024)", "layer_norm(m=512,n=768)", "sum(shape=4096x4096)"]
_BERT = [f"dense(m=128,n={n},k={k}{more})" for n, k, more in ((768, 768, ""), (3072, 768, ",activation=gelu"), (768, 3072, ""))] + [
    "batch_matmul(b=12,m=128,n=128,k=64)",
    "batch_matmul(b=12,m=128,n=64,k=128)",
    "softmax(m=1536,n=128)",
    "layer_norm(m=128,n=768)",
]


def _image(
    name: str, n: int, extents: tuple[int, ...], channels: tuple[int, int], kernel: int, stride: int, pad: int, more: str = ""
) -> str:
    """A convolution of some kind, with one extent of the kernel, one stride and one padding."""
    letters = "dhw"[-len(extents) :]
    sizes = [f"{d}={e}" for d, e in zip(letters, extents, strict=True)]
    parts = [f"n={n}", *sizes, f"ci={channels[0]}", f"co={channels[1]}", *[f"k{d}={kernel}" for d in letters]]
    strided, padded = f",stride={stride}" * (stride > 1), f",pad={pad}" * (pad > 0)
    return f"{name}({','.join(parts)}{strided}{padded}{more})"


_RESNET_LAYERS = ((224, 3, 64, 7, 2, 3), (56, 64, 64, 1, 1, 0), (14, 256, 256, 3, 1, 1), (7, 512, 512, 3, 1, 1))
"""Size, channels, kernel, stride and padding of layers of ResNet-18, from which Ansor derives most of its shapes."""


def _ansor(n: int) -> dict[str, list[str]]:
    """Ansor's single operators with batch n, by their names in the paper."""
    square = [(s, (ci, co), k, stride, pad) for s, ci, co, k, stride, pad in _RESNET_LAYERS]
    grouped = [(56, (64, 128), 3, 2, 1), *square[1:]]
    lines = ((256, 64, 128, 3, 2, 1), (128, 128, 256, 1, 2, 0), (64, 256, 256, 5, 1, 2), (32, 512, 512, 3, 1, 1))
    depthwise = ((112, 32, 1), (112, 64, 2), (14, 512, 2), (7, 1024, 1))
    generator = ((4, 512, 256), (8, 256, 128), (16, 128, 64), (32, 64, 3))
    products = ((128, 128, 128), (512, 32, 512), (512, 512, 512), (1024, 1024, 1024))
    capsules = ((16, 32, 32, 2), (8, 32, 32, 1), (16, 8, 16, 2), (8, 16, 16, 1))
    return {
        "C1D": [_image("conv1d", n, (w,), (ci, co), k, s, p) for w, ci, co, k, s, p in lines],
        "C2D": [_image("conv2d", n, (w, w), c, k, s, p) for w, c, k, s, p in square],
        "C3D": [_image("conv3d", n, (16, w, w), c, k, s, p) for w, c, k, s, p in square],
        "GMM": [f"batch_matmul(b={n},m={r},n={c},k={k})" for r, c, k in products],
        "GRP": [_image("conv2d", n, (w, w), c, k, s, p, ",groups=4") for w, c, k, s, p in grouped],
        "DIL": [_image("conv2d", n, (w, w), c, k, s, p, ",dilation=2") for w, c, k, s, p in square],
        "DEP": [_image("conv2d", n, (w, w), (c, c), 3, s, 1, f",groups={c}") for w, c, s in depthwise],
        "T2D": [_image("conv2d_transpose", n, (w, w), (ci, co), 4, 2, 1) for w, ci, co in generator],
        "CAP": [_image("capsule_conv2d", n, (w, w), (ci, co), 3, s, 1) for w, ci, co, s in capsules],
        "NRM": [f"matrix_norm(b={n},m={m},n={k})" for m, k in ((256, 256), (512, 512), (1024, 1024), (4096, 1024))],
    }


_METASCHEDULE = [
    "conv1d(n=1,w=256,ci=64,co=128,kw=3,stride=2,pad=1)",
    _conv(224, 3, 64, 7, 2),
    "conv3d(n=1,d=16,h=224,w=224,ci=3,co=64,kd=7,kh=7,kw=7,stride=2,pad=3)",
    _conv(112, 32, 32, 3, 1, ",groups=32"),
    _conv(224, 3, 64, 7, 2, ",dilation=2"),
    "matmul(m=128,n=128,k=128)",
    _conv(56, 64, 128, 3, 2, ",groups=4"),
    "conv2d_transpose(n=1,h=4,w=4,ci=512,co=256,kh=4,kw=4,stride=2,pad=1)",
    _conv(224, 3, 64, 7, 2, RELU),
    "batch_matmul(b=12,m=128,n=128,k=64)",
    "matrix_norm(b=1,m=256,n=256)",
    "softmax(m=256,n=256)",
]
_LAYERS = [
    "max_pool2d(n=1,h=112,w=112,c=64,kh=3,kw=3,stride=2,pad=1)",
    "avg_pool2d(n=1,h=56,w=56,c=128,kh=2,kw=2,stride=2)",
    "mean(shape=1x7x7x2048,axis=1+2)",
    "max_pool1d(n=1,w=4096,c=64,kw=4,stride=4)",
    "avg_pool1d(n=1,w=4096,c=64,kw=5,pad=2,count_include_pad=1)",
    "max_pool3d(n=1,d=16,h=56,w=56,c=64,kd=2,kh=2,kw=2,stride=2)",
    "avg_pool3d(n=1,d=16,h=56,w=56,c=64,kd=2,kh=2,kw=2,stride=2)",
    "conv1d_transpose(n=1,w=256,ci=256,co=128,kw=16,stride=8,pad=4)",
    "conv3d_transpose(n=1,d=8,h=28,w=28,ci=128,co=64,kd=2,kh=2,kw=2,stride=2)",
    "resize2d(n=1,h=64,w=64,c=256,oh=128,ow=128,coordinates=asymmetric)",
    "resize2d(n=1,h=64,w=64,c=256,oh=128,ow=128,mode=linear)",
    "group_norm(shape=1x64x64x320,groups=32)",
    "instance_norm(shape=1x256x256x32)",
    "rms_norm(m=128,n=4096)",
    "variance(shape=512x768,axis=1)",
    "log_softmax(m=128,n=30522)",
    "argmax(shape=128x30522)",
    "argmin(shape=4096x256)",
    "argsort(shape=1024x256)",
    "topk(shape=1x32000,k=50)",
    "attention(b=12,m=128,n=128,d=64)",
    "attention(b=32,m=512,n=512,d=128,causal=1)",
    "embedding(tokens=128,vocabulary=30522,width=768)",
    "gather(m=4096,n=512,rows=1024)",
    "lstm_cell(m=16,n=1024,k=1024)",
]
_TINY = [
    "matmul(m=64,n=64,k=64)",
    "conv2d(n=1,h=8,w=8,ci=16,co=16,kh=3,kw=3,pad=1)",
    "softmax(m=64,n=64)",
    "layer_norm(m=64,n=64)",
    "sum(shape=64x64,axis=1)",
    "gelu(shape=64x64)",
]

for _name, _about, _texts in (
    ("gemm", "matrix products, from square to skinny, fused and batched", _GEMM),
    ("conv", "ResNet's convolutions, one of each kind", _CONV),
    ("depthwise", "MobileNet's depthwise convolutions, an early and a late one", _DEPTHWISE),
    ("rows", "softmax, layer norm and a full sum: what memory limits", _ROWS),
    ("operators", "gemm, conv, depthwise and rows together: the operators of the performance table", [*_GEMM, *_CONV, *_DEPTHWISE, *_ROWS]),
    (
        "ansor",
        "the single operators of Ansor's evaluation (OSDI 2020): four shapes of each of ten, batch 1 and 16",
        [w for n in (1, 16) for ws in _ansor(n).values() for w in ws],
    ),
    ("ansor1", "one shape of each of Ansor's ten operators, batch 1", [ws[0] for ws in _ansor(1).values()]),
    ("metaschedule", "the operators and subgraphs of MetaSchedule's evaluation (NeurIPS 2022), batch 1", _METASCHEDULE),
    ("layers", "layers of networks beside matrix products and convolutions: pooling, normalisation, attention, gather, resizing", _LAYERS),
    ("resnet18", "the fused tasks of ResNet-18, batch 1, without pooling", _resnet18()),
    ("resnet50", "the fused tasks of ResNet-50, batch 1, without pooling", _resnet50()),
    ("mobilenet_v2", "the fused tasks of MobileNet-V2, batch 1, without pooling; relu stands for relu6", _mobilenet_v2()),
    ("bert_base", "the main tasks of BERT base, batch 1, 128 tokens", _BERT),
    ("tiny", "one small workload of each kind, for trying things out", _TINY),
):
    SUITES.register(_name, Suite(_about, tuple(dict.fromkeys(_texts))))
