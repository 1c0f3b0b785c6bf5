"""Define suites: named lists of workloads shared by studies, data sets and benchmarks.

Shapes are those of published suites and models, as far as the operators of `ops/` can express them.  On the command line, `suite:NAME` is
accepted in place of a workload.
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
_ANSOR = [
    _conv(224, 3, 64, 7, 2),
    "matmul(m=128,n=128,k=128)",
    _conv(56, 64, 128, 3, 2, ",groups=4"),
    "conv2d(n=1,h=224,w=224,ci=3,co=64,kh=7,kw=7,stride=2,pad=3,dilation=2)",
    _conv(112, 32, 32, 3, 1, ",groups=32"),
    "softmax(m=256,n=256)",
    _conv(224, 3, 64, 7, 2, RELU),
    "batch_matmul(b=12,m=128,n=128,k=64)",
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
    ("ansor", "C2D, GMM, GRP, DIL, DEP, SFM, CBR and TBG of Ansor's and MetaSchedule's single operators, batch 1", _ANSOR),
    ("resnet18", "the fused tasks of ResNet-18, batch 1, without pooling", _resnet18()),
    ("resnet50", "the fused tasks of ResNet-50, batch 1, without pooling", _resnet50()),
    ("mobilenet_v2", "the fused tasks of MobileNet-V2, batch 1, without pooling; relu stands for relu6", _mobilenet_v2()),
    ("bert_base", "the main tasks of BERT base, batch 1, 128 tokens", _BERT),
    ("tiny", "one small workload of each kind, for trying things out", _TINY),
):
    SUITES.register(_name, Suite(_about, tuple(dict.fromkeys(_texts))))
