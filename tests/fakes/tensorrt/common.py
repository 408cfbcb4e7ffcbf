"""FAKE of TensorRT: constants, loggers and the lifetime of objects."""

import enum
import weakref
from typing import Any

import fake_settings
import onnx
from fake_device import DEVICE

__version__ = fake_settings.VERSION
MAJOR, MINOR = (int(word) for word in __version__.split(".")[:2])
NAMED, NUMBERED = (MAJOR, MINOR) >= (8, 5), MAJOR < 10


class ILogger:
    class Severity(enum.IntEnum):
        INTERNAL_ERROR = 0
        ERROR = 1
        WARNING = 2
        INFO = 3
        VERBOSE = 4

    def __init__(self) -> None:
        self.initialized = True

    def log(self, severity: Any, message: str) -> None:
        raise NotImplementedError


class DataType(enum.Enum):
    FLOAT = "float32"
    HALF = "float16"
    INT32 = "int32"
    INT64 = "int64"


class ProfilingVerbosity(enum.Enum):
    LAYER_NAMES_ONLY = 0
    DETAILED = 2


class LayerInformationFormat(enum.Enum):
    JSON = 1


class MemoryPoolType(enum.Enum):
    WORKSPACE = 0


BuilderFlag = enum.IntEnum("BuilderFlag", {"TF32": 7} if MAJOR >= 11 else {"FP16": 0, "TF32": 7})  # type: ignore[misc]
NetworkDefinitionCreationFlag = enum.IntEnum(  # type: ignore[misc]
    "NetworkDefinitionCreationFlag",
    {**({} if MAJOR >= 11 else {"EXPLICIT_BATCH": 0}), **({"STRONGLY_TYPED": 1} if MAJOR >= 10 else {})},
)
ErrorCode = enum.IntEnum("ErrorCode", {"INVALID_NODE": 6, "UNSUPPORTED_NODE": 8})


class Owned:
    """An object whose owner must outlive it, as in C++. ``kept_alive``: objects of this class are kept by what they made."""

    kept_alive = False

    def __init__(self, owner: Any) -> None:
        self._owner, self._users = weakref.ref(owner), weakref.WeakSet()  # type: ignore[var-annotated]
        if isinstance(owner, Owned):
            if owner.kept_alive:
                self._kept = owner
            else:
                owner._users.add(self)

    def owner(self, use: str) -> Any:
        owner = self._owner()
        if owner is None:
            DEVICE.fault(f"{use}: the owner of this {type(self).__name__} is gone")
        return owner

    def __del__(self) -> None:
        for user in list(self._users):
            DEVICE.faults.append(f"{type(self).__name__} destroyed before its {type(user).__name__}")


def log_error(owner: Any, message: str) -> None:
    owner.log(ILogger.Severity.ERROR, message)


ALIVE: Any = weakref.WeakSet()


class Root(Owned):
    """A builder or a runtime. While one of them lives, TensorRT uses the logger that it was given, and ignores any other."""

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger) or not hasattr(logger, "initialized"):
            DEVICE.fault(f"{type(self).__name__}: no ILogger, or one whose __init__ was not called")
        if any(root.owner("logger") is not logger for root in ALIVE):
            DEVICE.fault(f"{type(self).__name__}: another logger is registered, and this one will be ignored")
        super().__init__(logger)
        ALIVE.add(self)


def dtype_of(port: Any) -> DataType:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type).name
    return DataType("int32" if dtype == "int64" and MAJOR < 10 else dtype)
