"""The part that is compiled; everything else is in pyproject.toml.

Without a compiler the package works, too: results are then copied into shared memory.
"""

import numpy
from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dask_marsched.store._numpy_memory",
            ["dask_marsched/store/_numpy_memory.c"],
            include_dirs=[numpy.get_include()],
            optional=True,
        )
    ]
)
