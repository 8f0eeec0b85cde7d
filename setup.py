"""Builds the compiled kernels where there is a C compiler; everything else is in pyproject.toml."""

import zlib
from pathlib import Path

from setuptools import Extension, setup

SOURCES = sorted(Path("src/waitinfo/model/native").glob("*.[ch]"))
STAMP = zlib.crc32(b"".join(source.read_bytes() for source in SOURCES))  # as library.py expects

setup(
    ext_modules=[
        Extension(
            "waitinfo.model.native._kernels",
            ["src/waitinfo/model/native/kernels.c"],
            depends=[str(source) for source in SOURCES],
            define_macros=[("WAITINFO_SOURCES", f"{STAMP}u")],
            # The kernels must round like torch does: no reordering, no fused multiply-add.
            extra_compile_args=[
                "-O3",
                "-std=gnu11",
                "-ffp-contract=off",
                "-fno-math-errno",
                "-fno-trapping-math",
            ],
            optional=True,
        )
    ]
)
