"""Finding NVIDIA's bindings, their library and an engine: none is here, the wrong ones are, or all are."""

from __future__ import annotations

import math
import shutil
import socket
import sys
import warnings
from pathlib import Path

import pytest

from gpuwhy.source import NoGpuError, SourceError, dcgm_bindings
from gpuwhy.source.dcgm_bindings import Bindings, Engine, EngineError, find_engine

from .fake_engine import (
    FOLDER,
    MODULES,
    SOCKET,
    ST,
    TCP,
    FakeEngine,
    forget_bindings,
    install,
)
from .fake_nvml import FakeGpu

TRUE_PROBE = dcgm_bindings.probe


@pytest.fixture
def engine(monkeypatch):
    made = FakeEngine([FakeGpu()])
    install(monkeypatch, made)
    return made


def load(folder="", library=""):
    return Bindings(folder, library, "a DCGM host engine is at 127.0.0.1:5555")


# --- the bindings


def test_imports_leave_the_path_as_it_was(engine):
    """The folder is searched last, and only while its modules are imported."""
    path = sys.path[:]
    bindings = load()
    assert sys.path == path
    assert bindings.folder == FOLDER
    assert bindings.version == "4.9.1"
    assert all(sys.modules[name].__file__.startswith(FOLDER) for name in MODULES)


def test_warnings_of_the_bindings_do_not_matter(engine):
    """From DCGM 4.6 on, old names of fields warn; only numbers are used."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load()


def test_missing_bindings(monkeypatch, engine, tmp_path):
    """The message says what answered, where the bindings were looked for, and what to install."""
    monkeypatch.setattr(dcgm_bindings, "FOLDERS", (str(tmp_path / "four"), str(tmp_path / "three")))
    with pytest.raises(
        SourceError, match=r"engine is at 127.*four or .*three; install datacenter-gpu-manager-4-core"
    ):
        load()
    with pytest.raises(SourceError, match=r"not in /nowhere; .*agent\.dcgm_bindings"):
        load("/nowhere")


def test_dcgm_4_comes_before_dcgm_3(monkeypatch, engine, tmp_path):
    """Of both folders, the first that has bindings is taken, and one that is named before either."""
    for name in ("four", "three"):
        shutil.copytree(FOLDER, tmp_path / name)
    monkeypatch.setattr(dcgm_bindings, "FOLDERS", (str(tmp_path / "four"), str(tmp_path / "three")))
    assert load().folder == str(tmp_path / "four")
    shutil.rmtree(tmp_path / "four")
    for name in MODULES:
        del sys.modules[name]
    assert load().folder == str(tmp_path / "three")


def test_own_folder(monkeypatch, engine, tmp_path):
    """``bindings`` names a folder; through a link it is the same one."""
    folder = tmp_path / "mine"
    shutil.copytree(FOLDER, folder)
    assert load(str(folder)).folder == str(folder)
    (tmp_path / "link").symlink_to(folder)
    assert load(str(tmp_path / "link")).folder == str(tmp_path / "link")


@pytest.mark.parametrize("name", MODULES)
def test_foreign_modules_are_refused(monkeypatch, engine, tmp_path, name):
    """A module of the same name from anywhere else is not used, and what was imported is forgotten."""
    (tmp_path / f"{name}.py").write_text("DCGM_MAX = 1\ndef dcgmInit(): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SourceError, match=rf"{name} from {tmp_path}|cannot be imported"):
        load()
    assert not set(MODULES) & sys.modules.keys()


def test_a_foreign_module_that_is_already_imported_is_named(monkeypatch, engine, tmp_path):
    """As left by another folder of bindings, before an upgrade."""
    shutil.copytree(FOLDER, tmp_path / "old")
    load(str(tmp_path / "old"))
    with pytest.raises(SourceError, match=rf"hidden by the module \w+ from {tmp_path}/old.*restart gpuwhy"):
        load()


def test_never_shadows_modules_of_ours(monkeypatch, engine, tmp_path):
    """NVIDIA ships modules with names such as ``common``; whatever has the name before them keeps it."""
    folder, ours = tmp_path / "theirs", tmp_path / "ours"
    shutil.copytree(FOLDER, folder)
    ours.mkdir()
    (ours / "common_name.py").write_text("OURS = True\n")
    (folder / "common_name.py").write_text("OURS = False\n")
    agent = folder / "dcgm_agent.py"
    agent.write_text(f"import common_name\n{agent.read_text()}")
    monkeypatch.syspath_prepend(str(ours))
    monkeypatch.delitem(sys.modules, "common_name", raising=False)
    load(str(folder))
    assert sys.modules["common_name"].OURS


def test_broken_bindings(engine, tmp_path):
    """Bindings that cannot be imported cost the source, not the process."""
    for text in ("import no_such_module", "def broken(", "raise SystemError"):
        (tmp_path / "dcgm_agent.py").write_text(text)
        with pytest.raises(SourceError, match=rf"{tmp_path} cannot be imported .*reinstall"):
            load(str(tmp_path))


def test_test_framework_of_nvidia_is_not_touched(monkeypatch, engine):
    """Their ``pydcgm`` would import test modules that no package has; nothing of it is imported."""
    monkeypatch.setenv("__DCGM_TESTING_FRAMEWORK_ACTIVE", "1")
    load()
    assert not {"pydcgm", "utils", "DcgmHandle"} & sys.modules.keys()


# --- the library


def test_library_is_where_the_bindings_look(monkeypatch, engine):
    """LD_LIBRARY_PATH and the system's folders, as NVIDIA's bindings have it."""
    engine.library = "/opt/dcgm/lib"
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere:/opt/dcgm/lib")
    assert load().version == "4.9.1"


def test_own_library(engine):
    """``library`` is searched first."""
    engine.library = "/opt/mine"
    assert load(library="/opt/mine").version == "4.9.1"


def test_missing_library(monkeypatch, engine):
    """The message names what was tried and which option helps."""
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    engine.library = "/hidden"
    with pytest.raises(
        SourceError, match=r"no libdcgm\.so .*tried /mine, /elsewhere, /usr/lib/.*agent\.dcgm_library"
    ):
        load(library="/mine")


@pytest.mark.parametrize("code", ["FUNCTION_NOT_FOUND", "VER_MISMATCH"])
def test_library_of_another_version(engine, code):
    """Bindings and library of different versions say so."""
    engine.fail["dcgmInit"] = ST[code]
    with pytest.raises(SourceError, match=r"different DCGM versions: .*agent\.dcgm_library"):
        load()


def test_unknown_layout(engine, tmp_path):
    """Bindings whose values lie elsewhere in memory are not read from."""
    folder = tmp_path / "next"
    shutil.copytree(FOLDER, folder)
    structs = folder / "dcgm_structs.py"
    structs.write_text(
        structs.read_text().replace('("unused", ctypes.c_uint)', '("unused", ctypes.c_uint64)')
    )
    with pytest.raises(SourceError, match=r"laid out in an unknown way.*different DCGM versions"):
        load(str(folder))


@pytest.mark.parametrize("function", ["dcgmConnect_v2", "dcgmGetAllDevices"])
def test_function_that_the_bindings_lack(engine, function):
    """What a later DCGM may have dropped is an error with a name."""
    bindings = load()
    delattr(bindings.agent, function)
    with pytest.raises(EngineError, match=r"FUNCTION_NOT_FOUND .*different DCGM versions"):
        Engine(bindings, TCP, 1.0, 1.0).call("dcgmGetAllDevices")


# --- an engine


def test_nobody_listens(monkeypatch):
    """Where nothing was set, that is no fault; it costs two refusals, and loads nothing."""
    install(monkeypatch, None)
    with pytest.raises(
        NoGpuError, match=r"127\.0\.0\.1:5555: Connection refused; /tmp/nv-hostengine: .*start one"
    ):
        find_engine("", 0.1)
    with pytest.raises(
        SourceError, match=r"agent\.dcgm_address \(10\.0\.0\.1:5: Connection refused"
    ) as error:
        find_engine("10.0.0.1:5", 0.1)
    assert not isinstance(error.value, NoGpuError)
    assert not set(MODULES) & sys.modules.keys()


def test_default_addresses(monkeypatch, engine):
    """TCP first, then the socket."""
    assert find_engine("", 0.1) == TCP
    engine.listens = {SOCKET}
    assert find_engine("", 0.1) == SOCKET
    engine.listens = {TCP, SOCKET, "/run/mine"}
    assert find_engine("/run/mine", 0.1) == "/run/mine"


@pytest.mark.parametrize("family, host", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_probe_tcp(family, host):
    """A true port that listens, and one that does not."""
    with socket.socket(family) as listener:
        try:
            listener.bind((host, 0))
        except OSError:
            pytest.skip(f"no {host} here; remedy: enable IPv6 on loopback")
        port = listener.getsockname()[1]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with pytest.raises(OSError, match="refused"):
            TRUE_PROBE(address, 0.5)
        listener.listen()
        TRUE_PROBE(address, 0.5)


def test_probe_socket(tmp_path):
    """A true socket that listens, one that is left behind, and a path that is none."""
    path = str(tmp_path / "s")
    with pytest.raises(OSError, match="No such file"):
        TRUE_PROBE(path, 0.5)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        TRUE_PROBE(path, 0.5)
    with pytest.raises(OSError, match="refused"):
        TRUE_PROBE(path, 0.5)
    with pytest.raises(OSError, match="too long"):
        TRUE_PROBE("/" + 200 * "x", 0.5)


def test_names_are_unique(engine):
    """Two connections of one process at one time do not get in each other's way."""
    bindings = load()
    for _ in range(2):
        connection = Engine(bindings, TCP, 1.0, 1.0)
        connection.group([connection.entity(1, 0)])
        connection.group([connection.entity(1, 0)])
    assert len(set(engine.names)) == len(engine.names) == 4


def test_values_are_those_of_the_structures(engine):
    """What is unpacked from memory is what the bindings' structures say; integers stay integers."""
    connection = Engine(load(), TCP, 1.0, 1.0)
    entity = connection.entity(1, 0)
    fields = (100, 155, 156, 50)
    group = connection.group([entity])
    connection.watch(group, fields)
    slots = connection.call("dcgmEntitiesGetLatestValues", [entity], fields, 0)
    found = connection.values([entity], fields)
    assert [answer.field for answer in found] == list(fields)
    assert [answer.ts for answer in found] == [slot.ts for slot in slots]
    assert [answer.value for answer in found] == [
        slots[0].value.i64,
        slots[1].value.dbl,
        slots[2].value.i64,
        slots[3].value.str.decode(),
    ]
    assert [type(answer.value) for answer in found] == [int, float, int, str]
    assert math.isfinite(found[1].value)
    connection.close()
    assert engine.is_clean
    assert not engine.faults


def test_dcgm_3_has_no_status(monkeypatch):
    """What its bindings lack is not needed."""
    engine = FakeEngine([FakeGpu()], version=3)
    install(monkeypatch, engine)
    connection = Engine(load(), TCP, 1.0, 1.0)
    assert connection.gpu_status(0) == 0
    assert not hasattr(sys.modules["dcgm_agent"], "dcgmGetGpuStatus")


def test_forgetting_is_undone(monkeypatch):
    """The fake leaves no modules behind for other tests."""
    with pytest.MonkeyPatch.context() as patch:
        install(patch, FakeEngine([FakeGpu()]))
        load()
        assert Path(sys.modules["dcgm_agent"].__file__).parent == Path(FOLDER)
    assert not set(MODULES) & sys.modules.keys()
    forget_bindings(monkeypatch)
