"""How much memory the libraries below torch keep for themselves: the C library's malloc, and oneDNN's kernels."""

import ctypes
import mmap
import os
import sys
from functools import cache

# mallopt's number for the most heaps, from glibc's malloc.h.
_M_ARENA_MAX = -8
# oneDNN compiles a kernel for every shape of a product, some 0.5 MB each, and keeps 1,024 of them by default. Batches
# of texts have ever new shapes; what is used again soon is the kernels of one forward pass, which are far fewer.
_KERNELS = 256


@cache
def _glibc() -> ctypes.CDLL | None:
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "malloc_trim") else None


def limit_reserves() -> None:
    """Let all threads that start from now on share one heap, and oneDNN keep fewer kernels.

    glibc gives threads heaps of their own, in pieces of 64 MB, in which the large tensors of a training leave gaps that
    no other thread can use. (A training without any gaps, with a mapping for every tensor of over 1 MB, takes a quarter
    more time.) Torch must not have multiplied anything before, or oneDNN's limit stays as it was; one that the
    environment sets is kept.
    """
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS))
    if library := _glibc():
        library.mallopt(_M_ARENA_MAX, 1)


def trim_heap() -> None:
    """Give memory that was freed back to the system, which glibc does by itself only at the end of a heap."""
    if library := _glibc():
        library.malloc_trim(0)


def drop_pages(address: int, size: int) -> None:
    """Take memory that nobody reads any more out of this process, whoever still refers to it.

    Of a file that is mapped, pages that were read stay in a process until the whole mapping goes. What lies there
    reads as the file's bytes afterwards, and as zeros where there is no file.

    Args:
        address: of its first byte.
        size: in bytes; only whole pages are dropped.
    """
    if library := _glibc():
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        whole = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - start
        if whole > 0:
            library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(whole), mmap.MADV_DONTNEED)
