"""What the host code asks of whatever runs its kernels: CuPy on a GPU, or the emulator on a CPU.

No launch code knows which it has. A kernel is called as CuPy's ``RawKernel`` is.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from attnkit import AttnkitError

Array = Any
NO_DEFINES: Mapping[str, object] = MappingProxyType({})
DEFAULT_SHARED_BYTES = 48 * 1024
"""The dynamic shared memory that a block may have on any device, unless the kernel is told to take more."""


class Device(NamedTuple):
    """What tiles are chosen by.

    Attributes
    ----------
    arch
        Compute capability times ten: 75, 80, 90.
    sm_count
        Number of multiprocessors.
    smem_optin
        The most bytes of dynamic shared memory that a block may ask for.
    """

    arch: int
    sm_count: int
    smem_optin: int


class Kernel(Protocol):
    """The part of ``cupy.RawKernel`` that is used here."""

    max_dynamic_shared_size_bytes: int

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], *, shared_mem: int = 0
    ) -> None:
        """Launch a grid of blocks; arrays go by pointer, NumPy scalars and structured arrays of size 1 by value."""


class Module(Protocol):
    """Kernels of one source."""

    def get_function(self, name: str) -> Kernel:
        """Give one of the kernels that the module was asked for, the same object each time."""


class Runtime(Protocol):
    """Where arrays lie and kernels run.

    Attributes
    ----------
    xp
        The array library: ``numpy`` or ``cupy``.
    device
        The device that kernels run on.
    """

    xp: Any

    @property
    def device(self) -> Device:
        """The device that kernels run on."""

    @property
    def place(self) -> Hashable:
        """The device and queue of work that launches go to now; what was sent to one may not be there for others."""

    def on(self, array: Array) -> AbstractContextManager[Any]:
        """Let launches go to the device of an array."""

    def module(self, source: str, names: Sequence[str], defines: Mapping[str, object] = NO_DEFINES) -> Module:
        """Give kernels of a source, built where they have not been yet.

        Parameters
        ----------
        source
            A file name in ``kernels/``, or a path.
        names
            C++ expressions such as ``"attn::flash_decode<float, 64>"``.
        defines
            Preprocessor macros.
        """


class KernelError(AttnkitError, RuntimeError):
    """A kernel could not be built."""


class LaunchError(AttnkitError, RuntimeError):
    """A kernel could not be launched, or failed."""


def shared_room(count: int) -> int:
    """Give the bytes that ``Smem`` takes for a tile of so many."""
    return -(-count // 128) * 128


def check_shared(name: str, size: int, device: Device) -> None:
    """Raise ``LaunchError`` if a block of a kernel is to have more shared memory than the device gives."""
    if size > device.smem_optin:
        raise LaunchError(
            f"{name}: a block may have {device.smem_optin} bytes of shared memory on this device "
            f"(sm_{device.arch}), not {size}; choose smaller tiles"
        )


class Launch(NamedTuple):
    """A grid of blocks: how many in each direction, the threads of one, and its bytes of dynamic shared memory."""

    grid: tuple[int, ...]
    threads: int
    shared_bytes: int = 0

    def run(self, runtime: Runtime, source: str, name: str, *args: Any) -> None:
        """Launch a kernel of a source, by its C++ expression."""
        kernel = runtime.module(source, (name,)).get_function(name)
        if self.shared_bytes:
            kernel.max_dynamic_shared_size_bytes = self.shared_bytes
        kernel(self.grid, (self.threads,), args, shared_mem=self.shared_bytes)


def ptr(array: Array) -> int:
    """Give the address of an array's data, 0 for ``None``."""
    if array is None:
        return 0
    return int(array.ctypes.data if hasattr(array, "ctypes") else array.data.ptr)
