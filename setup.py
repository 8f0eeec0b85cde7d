"""Builds the compiled kernels where there is a C compiler; everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "waitinfo.model.native._kernels",
            ["src/waitinfo/model/native/kernels.c"],
            depends=sorted(glob("src/waitinfo/model/native/*.h")),
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
    ]
)
