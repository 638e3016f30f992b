"""The part of the build that pyproject.toml cannot say: the kernels, compiled where possible.

    stream/node/decode.py   -copy->  build/kernels/raxlog/stream/node.py   -Cython->  node.c  -cc->  .so
    stream/node/decode.pxd  -copy->  build/kernels/raxlog/stream/node.pxd

The sources run as they are. The copy differs in two ways: imports and functions marked "# cimport"
are left out, because the .pxd has them at C level, and SOURCE_HASH is filled in. Without a compiler,
or with RAXLOG_NO_COMPILE=1, the build goes on without the kernels' compiled form: all of them
are compiled, or none.
"""

# mypy: ignore-errors
# (setuptools and Cython come without types)

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path
from threading import Lock

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
COPY = Path("build", "kernels")
# a C function without a declaration must fail here, not when the kernel is imported
FLAGS = ["-O2", "-g0", "-Werror=implicit-function-declaration"]
FLAGS += ['-DCYTHON_SMALL_CODE=__attribute__((optimize("O0")))']  # what a module does once, at its import
# Without C types the time goes into calls of Python: what the rest of -O2 does takes long, and gains nothing there.
LIGHT = ["-O1", "-freorder-blocks-algorithm=stc", "-finline-small-functions", "-fpartial-inlining"]
# So these with C types, which have hardly any loop.
CALLS = ("raxlog.storage.commit.", "raxlog.storage.folder.", "raxlog.storage.format.", "raxlog.storage.locks.",
         "raxlog.storage.log.", "raxlog.stream.entries.", "raxlog.stream.group.", "raxlog.stream.pel.",
         "raxlog.index.subjects.")
VALUES = ["-O3"]  # loops over values with calls within: a tenth less for five columns
# Cython 3.3 lets go twice of an item by which the list of a comprehension cannot grow: in the function, and at its end.
_APPEND = "    int result = PyList_Append(list, x);\n    "
ONCE = f"{_APPEND}Py_DECREF(x);\n", f"{_APPEND}if (likely(result == 0)) Py_DECREF(x);\n"
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # the types stand in the .pxd; annotations are for readers
}
# With C types beside it a kernel checks every offset itself. Without them it is Python that
# happens to be compiled, and keeps all of Python's rules.
TYPED = {**DIRECTIVES, "boundscheck": False, "wraparound": False, "cdivision": True}
# These have C types for attributes and calls alone: what they index comes from Python, or from disk.
INDEXED = {"raxlog.storage.folder.store_files", "raxlog.storage.locks.writer_lock", "raxlog.stream.entries.header",
           "raxlog.stream.group.deliver", "raxlog.stream.group.state"}

_spec = importlib.util.spec_from_file_location("kernels", ROOT / "storage" / "kernels.py")
assert _spec is not None
assert _spec.loader is not None
kernels = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(kernels)


def missing_to_compile() -> str:
    """What a compilation needs and is not here, or why none is wanted; "" if nothing is missing."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if os.environ.get("RAXLOG_NO_COMPILE") == "1":
        return "RAXLOG_NO_COMPILE=1 is set"
    if importlib.util.find_spec("Cython") is None:
        return "no Cython"
    if shutil.which(compiler) is None:
        return f"no C compiler ({compiler})"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    return "" if headers.is_file() else f"no headers of Python ({headers})"


def say_plain(reason: str) -> None:
    print(f"raxlog: the kernels run as plain Python: {reason}", file=sys.stderr, flush=True)


def source_of(name: str) -> Path:
    return Path(*name.split(".")[1:]).with_suffix(".py")


def without_cimports(source: str) -> str:
    """The source without the imports and functions marked "# cimport", line numbers kept."""
    lines = source.split("\n")
    inside = in_function = False
    for i, line in enumerate(lines):
        in_function = in_function and (not line or line.startswith(" "))
        if inside or in_function or line.endswith("# cimport"):
            in_function = in_function or line.startswith("def ")
            inside = not in_function and (inside or "(" in line) and ")" not in line
            lines[i] = ""
    return "\n".join(lines)


def write_if_new(path: Path, text: str) -> None:
    """Leave a file that is right already untouched, so that Cython need not run again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def copied_source(name: str) -> str:
    """Write the copy of a kernel, and return its path."""
    source = source_of(name)
    copy = COPY / "raxlog" / source
    text = without_cimports(source.read_text(encoding="utf-8"))
    filled = text.replace('SOURCE_HASH = ""\n', f'SOURCE_HASH = "{kernels.source_hash(source)}"\n', 1)
    for package in copy.relative_to(COPY).parents[:-1]:
        write_if_new(COPY / package / "__init__.py", "")
    write_if_new(copy, filled)
    for types in kernels.types_of(source):
        write_if_new(COPY / "raxlog" / types, types.read_text("utf-8"))
    return str(copy)


class BuildModules(build_py):
    """Leaves this file out: the package's folder is the project's, so it lies among modules."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return [module for module in found if module[:2] != ("raxlog", "setup")]


class BuildKernels(build_ext):
    """Compiles the kernels, all or none; a failure leaves the plain sources to run."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or os.cpu_count()

    def build_extensions(self) -> None:
        self.cython = Lock()  # its state is global; the C compilers of other kernels run at the same time
        try:
            for extension in self.extensions:
                extension.sources = [copied_source(extension.name)]
            # the longest first, so that no core is idle while the last one is compiled
            self.extensions.sort(key=lambda extension: -os.path.getsize(extension.sources[0]))
            super().build_extensions()
        except Exception as error:  # whatever went wrong in a compiler, there is another way
            for extension in self.extensions:
                Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self.extensions = []
            say_plain(f"compiling them failed: {type(error).__name__}: {error}")

    def build_extension(self, extension: Extension) -> None:
        from Cython.Build import cythonize  # noqa: PLC0415  (may be absent)

        typed = Path(extension.sources[0]).with_suffix(".pxd").is_file()
        directives = TYPED if typed and extension.name not in INDEXED else DIRECTIVES
        with self.cython:
            (made,) = cythonize([extension], include_path=[str(COPY)], compiler_directives=directives, quiet=True)
        extension.sources = made.sources
        code = Path(made.sources[0]).read_text(encoding="utf-8")
        write_if_new(Path(made.sources[0]), code.replace(*ONCE))
        full = typed and not extension.name.startswith(CALLS)
        values = extension.name.startswith("raxlog.stream.columns.") or extension.name.endswith(".parse_values")
        extension.extra_compile_args = FLAGS + (VALUES if values else [] if full else LIGHT)
        super().build_extension(extension)


def declared() -> list[Extension]:
    """The extensions, if they can be built; setup commands that build nothing stay silent."""
    missing = missing_to_compile()
    if not missing:
        return [Extension(name, [str(source_of(name))]) for name in kernels.KERNELS]
    if {"build", "build_ext", "bdist_wheel", "editable_wheel", "install"} & set(sys.argv):
        say_plain(missing)
    return []


setup(ext_modules=declared(), cmdclass={"build_ext": BuildKernels, "build_py": BuildModules})
