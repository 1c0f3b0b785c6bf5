"""Print entry points of TVM-FFI in C: `__tvm_ffi_<name>`, which checks every argument and calls the kernel.

They are those of `codegen.llvm.host_entry` and `codegen.llvm.dynamic_shape_entry`, with the same checkers and the same messages.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunesmith.codegen.c.host.kernel import Kernel
from tunesmith.codegen.c.host.prelude import Prelude
from tunesmith.codegen.c.host.sizes import CheckedSizes
from tunesmith.codegen.cpu.entry_points import ENTRY_PREFIX, begin_entry, dlpack_dtype
from tunesmith.codegen.cpu.functions import DynamicShapeParam
from tunesmith.ir.poly import Var
from tunesmith.lower.passes.check_bounds import REPORT_ITEMS
from tunesmith.runtime.checker.argument_checker import CHECKER
from tunesmith.runtime.checker.param_spec import ParamSpec
from tunesmith.runtime.checker.size_checker import CHECK_POSITIVE_SIZES, CHECK_SIZES, CHECK_TENSORS, MAX_SIZES, REFUSE
from tunesmith.support import dtype as dt
from tunesmith.support.errors import BuildError

DECLARATIONS = f"""\
struct tunesmith_param {{
  const char *name, *expected;
  const int64_t *shape;
  int32_t dimensions, dtype;
  int64_t bytes, alignment, written;
}};
struct tunesmith_signature {{
  const char *function;
  int32_t count;
  const struct tunesmith_param *params;
  const char *usage;
  int32_t sizes;
  const char *const *size_names;
  const int64_t *uses;
}};
int {CHECKER}(const void *signature, const void *args, int32_t count, void **addresses);
int {CHECK_SIZES}(const void *signature, const void *args, int32_t count, int64_t *sizes);
int {CHECK_POSITIVE_SIZES}(const void *signature, const void *args, int32_t count, int64_t *sizes);
int {CHECK_TENSORS}(const void *signature, const void *params, const void *args, const int64_t *sizes, void **addresses);
int {REFUSE}(const void *signature, const int64_t *sizes, int64_t bytes, const char *detail);
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count);
int snprintf(char *restrict text, size_t size, const char *restrict format, ...);"""
"""The layouts and functions of `runtime.checker`."""


class Entries:
    """The entry points of a module."""

    def __init__(self, prelude: Prelude) -> None:
        self._prelude = prelude
        self._names: set[str] = set()
        self._texts: list[str] = []

    def text(self) -> str:
        """All entry points, with the declarations that they need."""
        return "\n\n".join([DECLARATIONS, *self._texts])

    def add(self, name: str, kernel: Kernel, params: Sequence[ParamSpec], sites: Sequence[str] | None) -> None:
        """Print the entry point of a kernel with constant shapes.

        Args:
            name: exported name of the function.
            kernel: the kernel, which takes one pointer for each parameter.
            params: specifications of the arguments.
            sites: index checks of the kernel, if it takes a report after the parameters.
        Raises:
            BuildError: the name is not an identifier, or is used twice.
        """
        begin_entry(name, self._names)
        rows = []
        lines = []
        for i, p in enumerate(params):
            shape = f"{name}_shape{i}" if p.shape else "0"
            if p.shape:
                lines.append(f"static const int64_t {shape}[] = {{{', '.join(map(_integer, p.shape))}}};")
            rows.append(f"{{{_row(p.name, str(p), shape, len(p.shape), p.dtype, _integer(p.nbytes), p.written)}}}")
        if rows:
            lines += [f"static const struct tunesmith_param {name}_params[] = {{", *[f"  {r}," for r in rows], "};"]
        usage = f"{name}({', '.join(f'{p.name}: {p}' for p in params)})"
        table = f"{name}_params" if rows else "0"
        lines += [
            f"static const struct tunesmith_signature {name}_signature = {{{_text(name)}, {len(rows)}, {table}, {_text(usage)}}};",
            *_bounds(name, sites),
            _head(name),
            f"  void *p[{max(len(rows), 1)}];",
            f"  const int status = {CHECKER}(&{name}_signature, args, count, p);",
            "  if (status) return status;",
            *([f"  int64_t report[{REPORT_ITEMS}] = {{0}};"] if sites is not None else []),
        ]
        arguments = ", ".join([*[f"p[{i}]" for i in range(len(rows))], *(["report"] if sites is not None else [])])
        lines += _run(name, kernel, arguments, "0")
        lines += [f"  return {f'{name}_bounds(report)' if sites else 0};", "}"]
        self._texts.append("\n".join(lines))

    def add_dynamic(
        self,
        name: str,
        kernel: Kernel,
        params: Sequence[DynamicShapeParam],
        sizes: Sequence[Var],
        sites: Sequence[str] | None,
        takes_empty: bool,
    ) -> None:
        """Print the entry point of a kernel with dynamic shapes: it computes the extents from the sizes, and then checks the tensors.

        Args:
            name: exported name of the function.
            kernel: the kernel, which takes one pointer for each tensor, and the sizes.
            params: specifications of the tensors.
            sizes: the ints that follow them.
            sites: index checks of the kernel, if it takes a report after the tensors.
            takes_empty: the kernel takes size 0; otherwise the entry refuses it.
        Raises:
            BuildError: the name is not an identifier, or is used twice, or there are too many sizes.
        """
        if len(sizes) > MAX_SIZES:
            raise BuildError(f"{name}: a function has at most {MAX_SIZES} sizes, got {len(sizes)}")
        begin_entry(name, self._names)
        checked = CheckedSizes({v: f"sizes[{j}]" for j, v in enumerate(sizes)}, "x", self._prelude)
        fill, first = [], 0
        for i, p in enumerate(params):
            extents = [checked.value(e) for e in p.shape]
            nbytes = checked.product([str(dt.nbytes(p.dtype)), *extents])
            fill += [f"  extents[{first + d}] = {extent};" for d, extent in enumerate(extents)]
            row = _row(p.name, str(p), f"extents + {first}", len(extents), p.dtype, nbytes, p.written)
            fill.append(f"  params[{i}] = (struct tunesmith_param){{{row}}};")
            first += len(extents)
        masks = [sum(1 << j for j, v in enumerate(sizes) if any(v in e.vars for e in p.shape)) for p in params]
        usage = f"{name}({', '.join([*(f'{p.name}: {p}' for p in params), *(f'{v.name}: int' for v in sizes)])})"
        uses = f"{name}_uses" if masks else "0"
        arguments = [*[f"p[{i}]" for i in range(len(params))], *(["report"] if sites is not None else [])]
        arguments += [f"sizes[{j}]" for j in range(len(sizes))]
        lines = [
            f"static const char *const {name}_sizes[] = {{{', '.join(_text(v.name) for v in sizes)}}};",
            *([f"static const int64_t {uses}[] = {{{', '.join(map(_word, masks))}}};"] if masks else []),
            f"static const struct tunesmith_signature {name}_signature = {{",
            f"  {_text(name)}, {len(params)}, 0, {_text(usage)}, {len(sizes)}, {name}_sizes, {uses}",
            "};",
            *_bounds(name, sites),
            _head(name),
            f"  int64_t sizes[{len(sizes)}], extents[{max(first, 1)}];",
            f"  struct tunesmith_param params[{max(len(params), 1)}];",
            f"  void *p[{max(len(params), 1)}];",
            f"  int status = {CHECK_SIZES if takes_empty else CHECK_POSITIVE_SIZES}(&{name}_signature, args, count, sizes);",
            "  if (status) return status;",
            "  bool overflow = false;",
            *[f"  {line}" for line in checked.lines],
            f"  if (overflow) return {REFUSE}(&{name}_signature, sizes, -1, {_text(kernel.detail)});",
            *fill,
            f"  status = {CHECK_TENSORS}(&{name}_signature, params, args, sizes, p);",
            "  if (status) return status;",
            *([f"  int64_t report[{REPORT_ITEMS}] = {{0}};"] if sites is not None else []),
            *_run(name, kernel, ", ".join(arguments), "sizes"),
            f"  return {f'{name}_bounds(report)' if sites else 0};",
            "}",
        ]
        self._texts.append("\n".join(lines))


def _head(name: str) -> str:
    return f"int {ENTRY_PREFIX}{name}(void *self, const void *args, int32_t count, void *result) {{\n  (void)self, (void)result;"


def _run(name: str, kernel: Kernel, arguments: str, sizes: str) -> list[str]:
    """Call the kernel, and raise an error if it refused to run."""
    if not kernel.refuses:
        return [f"  {kernel.name}({arguments});"]
    return [
        f"  const int64_t refused = {kernel.name}({arguments});",
        f"  if (refused) return {REFUSE}(&{name}_signature, {sizes}, refused, {_text(kernel.detail)});",
    ]


def _row(name: str, expected: str, shape: str, dimensions: int, dtype: str, nbytes: str, written: bool) -> str:
    values = [
        _text(name),
        _text(expected),
        shape,
        str(dimensions),
        str(dlpack_dtype(dtype)),
        nbytes,
        str(dt.nbytes(dtype)),
        str(int(written)),
    ]
    return ", ".join(values)


def _bounds(name: str, sites: Sequence[str] | None) -> list[str]:
    """A function that raises an IndexError if the report of a kernel names a failed index check."""
    if not sites:
        return []
    return [
        f"static const char *const {name}_sites[] = {{",
        *[f"  {_text(site)}," for site in sites],
        "};",
        f"static int {name}_bounds(const int64_t *report) {{",
        "  if (!report[0]) return 0;",
        "  char text[128];",
        '  snprintf(text, sizeof text, " is %lld, and the extent is %lld: out of bounds", (long long)report[1], (long long)report[2]);',
        f'  const char *parts[] = {{{_text(name)}, ": ", {name}_sites[report[0] - 1], text}};',
        '  TVMFFIErrorSetRaisedFromCStrParts("IndexError", parts, 4);',
        "  return -1;",
        "}",
    ]


def _integer(value: int) -> str:
    return str(value) if abs(value) < 1 << 31 else f"INT64_C({value})"


def _word(value: int) -> str:
    return f"(int64_t)UINT64_C({value})"


def _text(text: str) -> str:
    """A string literal."""
    out = []
    for byte in text.encode():
        c = chr(byte)
        out.append(f"\\{c}" if c in '"\\' else c if 32 <= byte < 127 and c != "?" else f"\\{byte:03o}")
    return f'"{"".join(out)}"'
