"""Names that no checkpoint should bring along, and what each could do. Standard library.

A name covers everything below it: `os` also `os.path.join`. Gathered from the source of CPython, PyTorch and NumPy
and from published advisories on scanners of pickles: CVE-2025-1716 (pip), CVE-2025-10157 (submodules of a listed
module), CVE-2026-53873 (profile), CVE-2026-56304 (FileHandler), CVE-2026-56315 (test), GHSA-vvpj-8cmc-gx39
(pkgutil), GHSA-9m3x-qqw2-h32h (cloudpickle), GHSA-9726-w42j-3qjr (FileIO, urlopen), GHSA-g38g-8gr9-h9xp (uuid,
imaplib), GHSA-5j3x-jp52-966f (names reached through other modules).
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass

from modelscope_cli.checkpoints.pickle_machine import Global
from modelscope_cli.checkpoints.safety.known_names import KNOWN_NAMES
from modelscope_cli.records.safety import DANGEROUS, KNOWN, UNKNOWN

_GROUPS = {
    "runs a program or Python code": """
        os posix nt subprocess popen2 commands pty _posixsubprocess sys runpy code codeop multiprocessing
        _multiprocessing concurrent interpreters _interpreters _xxsubinterpreters pexpect ptyprocess
        psutil.Popen sh plumbum invoke fabric paramiko ansible platform.popen pipes asyncio sched atexit signal
        faulthandler builtins.eval builtins.exec builtins.compile builtins.execfile builtins.apply
        builtins.breakpoint builtins.__import__ builtins.__build_class__ __builtins__ imaplib.IMAP4_stream
        mailcap webbrowser antigravity turtledemo this dataclasses.make_dataclass collections.namedtuple
        typing.get_type_hints typing.ForwardRef torch.utils.collect_env torch.utils.bottleneck
        torch.utils.cpp_extension torch.utils.cpp_backtrace torch._inductor torch._dynamo torch._export
        torch._functorch torch._lazy torch._refs torch._decomp torch.fx torch.jit torch.package torch.compiler
        torch.onnx torch.ops torch._ops torch.classes torch._classes torch.library torch._library torch.testing
        torch.multiprocessing torch.distributed.rpc torch.distributed.run torch.distributed.launch
        torch.distributed.launcher torch.distributed.elastic torch.distributed.nn.jit torch.utils.data.datapipes
        torch.utils._config_module torch.utils.benchmark torch.utils.model_dump torch.utils.jit
        torch.utils.throughput_benchmark torch._sources torch._appdirs torch._compile torch._deploy
        torch._custom_op torch._C._jit torch.utils._strobelight torch.utils.hipify torch.backends
        torch.utils.viz torch.cuda.nvtx torch.cuda._memory_viz torch.contrib torch.profiler
        torch.autograd.profiler torch._weights_only_unpickler numpy.testing numpy.f2py numpy.distutils
        numpy.compat numpy.lib.utils sympy pandas.eval pandas.core.computation mlflow ray.cloudpickle ray.remote
        distributed celery gevent eventlet twisted IPython ipykernel jupyter_client pytest _pytest nose tox nox
        coverage jinja2 mako numba cffi cython Cython pyximport tvm triton transformers.dynamic_module_utils
        transformers.pipelines huggingface_hub.file_download sklearn.utils._testing _distutils_hack""",
    "is a tool for debugging or tests that runs code": """
        pdb bdb cProfile _lsprof profile pstats timeit trace tracemalloc doctest pydoc test unittest idlelib
        lib2to3 turtle cgitb code _pydevd pydevd debugpy""",
    "starts a program inside": """
        uuid._get_command_stdout uuid._popen _osx_support _aix_support _pyrepl ctypes.util sysconfig _sysconfig
        venv ensurepip pip setuptools distutils pkg_resources wheel easy_install conda""",
    "imports whatever it is told": """
        importlib imp _imp _frozen_importlib _frozen_importlib_external pkgutil zipimport modulefinder site
        sitecustomize usercustomize cloudpickle.cloudpickle.subimport xmlrpc.server unittest.mock logging.config
        encodings six.moves torch.utils._import_utils numpy.lib._utils_impl tests.conftest hydra.utils
        omegaconf.OmegaConf.register_new_resolver pydoc.locate typing_extensions.get_type_hints""",
    "reaches what is not named": """
        builtins.setattr builtins.delattr builtins.globals builtins.locals builtins.vars builtins.dir
        builtins.property builtins.super builtins.map builtins.filter builtins.iter builtins.next
        builtins.classmethod builtins.staticmethod operator.attrgetter operator.methodcaller operator.itemgetter
        operator.call _operator.attrgetter _operator.methodcaller _operator.itemgetter _operator.call
        functools.reduce _functools.reduce functools.partialmethod functools.singledispatch
        functools.cached_property inspect gc weakref _weakref contextvars traceback ast dis opcode symtable
        tokenize py_compile compileall""",
    "makes a function out of bytes": """
        types.CodeType types.FunctionType types.LambdaType types.MethodType types.ModuleType marshal cloudpickle
        dill cloudpickle_generators jsonpickle types.new_class types.coroutine""",
    "loads a second pickle": """
        pickle _pickle cPickle pickletools shelve joblib.load joblib.numpy_pickle.load joblib.memory torch.load
        torch.hub torch.utils.model_zoo torch.serialization.load torch.serialization._load
        torch.serialization._legacy_load torch.storage._load_from_bytes torch.distributed.checkpoint
        torch.distributed.distributed_c10d torch.distributed._shard.checkpoint pandas.read_pickle pandas.io
        numpy.load numpy.lib.npyio numpy.lib._npyio_impl numpy.lib.format numpy.ma.core.load skops hickle klepto
        pickle5 compress_pickle yaml ruamel oyaml keras.models keras.saving keras.src.saving keras.layers.Lambda
        tensorflow.io tensorflow.raw_ops tensorflow.python.ops.io_ops tensorflow.python.platform
        sklearn.externals dask.distributed""",
    "loads native code": "ctypes _ctypes numpy.ctypeslib torch.ops.load_library torch._C._load_library cppyy",
    "opens a connection": """
        socket _socket ssl _ssl select selectors asyncore asynchat http.client http.server http.cookiejar httplib
        urllib urllib2 urllib3 requests
        aiohttp httpx ftplib smtplib smtpd poplib imaplib telnetlib nntplib xmlrpc socketserver SocketServer
        wsgiref cgi torchvision.datasets.utils torchvision.io torchvision._internally_replaced_utils
        transformers.utils.hub s3fs boto3 botocore fsspec filelock google.cloud paramiko websocket websockets
        zmq grpc""",
    "reads or writes files": """
        builtins.open builtins.input io.open io.FileIO io.open_code io.TextIOWrapper _io.open _io.FileIO
        _io.open_code _pyio shutil tempfile codecs.open codecs.StreamReaderWriter codecs.EncodedFile
        _codecs.lookup codecs.lookup logging.FileHandler logging.handlers logging.basicConfig argparse.FileType
        fileinput linecache glob sqlite3 _sqlite3 dbm gdbm tarfile zipfile zipapp gzip bz2 lzma mmap filecmp
        mailbox netrc plistlib stat ntpath posixpath genericpath nturl2path numpy.memmap
        numpy.core.memmap numpy._core.memmap numpy.fromfile numpy.tofile numpy.save numpy.savez numpy.savetxt
        numpy.loadtxt numpy.genfromtxt numpy.DataSource numpy.lib._datasource torch.save torch.from_file
        torch.serialization.save PIL.Image.open PIL.ImageShow PIL.ImageFile PIL.ImageGrab PIL.EpsImagePlugin
        pandas.read_csv pandas.read_json pandas.read_hdf scipy.io safetensors.torch.save_file resource
        rlcompleter readline termios tty curses winreg _winapi msvcrt crypt pwd grp spwd""",
    "runs something beside the program": "threading _thread thread dummy_threading queue.Queue greenlet",
    "hides a name behind a number": "copyreg.add_extension copyreg.pickle copyreg.constructor",
    "changes the tools that look for such code": "fickling picklescan modelscan modelaudit saferpickle",
}

# These would be reached through any module: `anything.os.system`, `six.moves.builtins.eval`.
_EVERYWHERE = """
    os posix nt subprocess sys builtins __builtin__ importlib ctypes pty runpy pickle _pickle marshal shutil socket
    multiprocessing"""

DANGEROUS_NAMES: dict[str, str] = {
    name: reason for reason, names in _GROUPS.items() for name in names.split()
}
ANYWHERE = frozenset(_EVERYWHERE.split())

# What these are called is what they do, whichever module they were imported into.
_LAST_PARTS = """
    system popen Popen exec eval execfile check_output check_call getoutput getstatusoutput import_module
    urlopen urlretrieve run_module run_path exec_module load_module attrgetter methodcaller FunctionType
    CodeType LambdaType ModuleType startfile execv execve execvp execl spawnl spawnv posix_spawn forkpty
    _load_from_bytes read_pickle load_library cdll CDLL WinDLL PyDLL runcode runsource runctx lambdify
    exec_command literal_exec unsafe_load run_code _run_code create_subprocess_shell create_subprocess_exec
    rmtree unlink"""
LAST_PARTS = frozenset(_LAST_PARTS.split())


# Modules of the standard library that Python has dropped since 3.11: the answer is the same on every Python.
_DROPPED = """
    aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp lib2to3 mailcap msilib nis nntplib
    ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib __builtin__"""
_STANDARD = sys.stdlib_module_names | set(_DROPPED.split())
# Where classes of one's own stand, and the names of TorchScript: not what `__dunder__` is used for elsewhere.
_OWN = ("__main__", "__mp_main__", "__torch__")


@dataclass(frozen=True, slots=True)
class Ranked:
    """A rank and the reason for it, in words that follow `it`; whether it is that of a call."""

    rank: str
    reason: str
    is_call: bool = False


_IS_KNOWN = Ranked(KNOWN, "holds values only")
_IS_UNKNOWN = Ranked(UNKNOWN, "is not on the list of what only holds values")


def rank(found: Global) -> Ranked:
    """Return how far a name is trusted, whatever it is called with."""
    if found.name in KNOWN_NAMES:
        return _IS_KNOWN
    attribute = found.name[len(found.module) + 1 :]
    return _dangerous(found.module, attribute) or _IS_UNKNOWN


def is_class_like(name: str) -> bool:
    """Tell a name as classes have them, `Conv2d` or `_Loss`, from one of a function or module."""
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()


def is_standard(name: str) -> bool:
    """Tell a name of Python's own library."""
    return name.partition(".")[0] in _STANDARD


def is_reaching(name: str) -> str | None:
    """Return why an attribute of this name is dangerous, whatever it is taken from."""
    if _is_special(name):
        return f"reaches what Python hides as '{name}'"
    return f"is called '{name}', as what runs code is" if name in LAST_PARTS else None


def _dangerous(module: str, attribute: str) -> Ranked | None:
    modules, attributes = module.split("."), attribute.split(".")
    reason = (
        _below_listed(f"{module}.{attribute}")
        or next(filter(None, map(is_reaching, [*modules[modules[0] in _OWN :], *attributes])), None)
        or next((f"reaches '{part}'" for part in [*modules[1:], *attributes] if part in ANYWHERE), None)
        or (_through(module, attributes) if len(attributes) > 1 else None)
        or (_of_python(modules) if is_standard(module) and not _is_class(modules, attribute) else None)
    )
    return Ranked(DANGEROUS, reason) if reason else None


def _below_listed(name: str) -> str | None:
    """Return why a name, or one that it is below of, is listed."""
    return next((DANGEROUS_NAMES[upper] for upper in _with_uppers(name) if upper in DANGEROUS_NAMES), None)


def _with_uppers(name: str) -> Iterable[str]:
    while name:
        yield name
        name = name.rpartition(".")[0]


def _through(module: str, attributes: list[str]) -> str | None:
    """Judge a dotted name: one that goes on from a class stays in it, one from a module leads anywhere."""
    for n in range(len(attributes)):
        listed = _below_listed(".".join(attributes[n:]))
        if listed is not None:
            return f"{listed}, reached through '{module}'"
    if attributes[0] in _STANDARD or not is_class_like(attributes[0]):
        return f"is reached through '{module}'"
    return None


def _of_python(modules: list[str]) -> str:
    is_private = any(_is_private(module) for module in modules)
    return f"is a {'private ' * is_private}part of Python's own library that no checkpoint needs"


def _is_class(modules: list[str], attribute: str) -> bool:
    """Tell a class of a public module of Python's library: made without its constructor, it holds values."""
    return is_class_like(attribute) and not any(map(_is_private, modules))


def _is_private(name: str) -> bool:
    return name.startswith("_")


def _is_special(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")
