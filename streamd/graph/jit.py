"""How kernels are compiled: those that Python calls by `kernel`, those that only kernels call by `inner`."""

from numba import njit

kernel = njit(cache=True, nogil=True)
inner = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Without a wrapper for Python, whose unpacking of many arrays takes longer to compile than the kernel itself."""
