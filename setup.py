"""Builds the compiled kernels where there is a C compiler; everything else is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

SOURCES = sorted(Path("src/waitinfo/model/native").glob("*.[ch]"))
STAMP = zlib.crc32(b"".join(source.read_bytes() for source in SOURCES))  # as library.py expects


class Wheel(bdist_wheel):
    """One wheel for every Python: the kernels are loaded by ctypes and know nothing of it."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    cmdclass={"bdist_wheel": Wheel},
    ext_modules=[
        Extension(
            "waitinfo.model.native._kernels",
            ["src/waitinfo/model/native/kernels.c"],
            depends=[str(source) for source in SOURCES],
            define_macros=[("WAITINFO_SOURCES", f"{STAMP}u")],
            # The kernels must round like torch does: no reordering, no fused multiply-add.
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=gnu11",
                "-ffp-contract=off",
                "-fno-math-errno",
                "-fno-trapping-math",
            ],
            optional=True,
        )
    ],
)
