"""The unit and its scripts, as far as they can be tried without a running systemd and without root."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuwhy import cli
from gpuwhy import config as configuration

SYSTEMD = "your distribution's package systemd"
FOLDER = Path("deploy/systemd")
DROPINS = ("host-evidence.conf", "slurm.conf")

# The most that docs/performance.md saw, in a burst of 1,000 clients with TLS and users.
MEASURED_MIB, MEASURED_THREADS = 66, 106
# What hides devices or processes, or is against what the agent loads; the unit says how.
TRAPS = {
    "PrivateDevices",
    "DeviceAllow",
    "DevicePolicy",
    "ProtectClock",
    "ProtectProc",
    "ProcSubset",
    "PrivatePIDs",
    "PrivateUsers",
    "PrivateNetwork",
    "PrivateTmp",
    "MemoryDenyWriteExecute",
    "DynamicUser",  # with which PrivateTmp comes
}
# By systemd's NEWS; the unit loads without them.
NEWER = {
    "LogRateLimitIntervalSec": 240,
    "LogRateLimitBurst": 240,
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "ProtectKernelLogs": 244,
    "RestartSteps": 254,
    "RestartMaxDelaySec": 254,
}


def _settings(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^([A-Za-z]\w*)=(.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def unit(root: Path) -> dict[str, list[str]]:
    return _settings(root / FOLDER / "gpuwhy.service")


@pytest.fixture
def loadable(root: Path, tmp_path: Path) -> Path:
    """The unit with a program that is there, beside it its drop-ins."""
    text = (root / FOLDER / "gpuwhy.service").read_text()
    path = tmp_path / "gpuwhy.service"
    path.write_text(text.replace("/opt/gpuwhy/bin/gpuwhy", sys.executable))
    shutil.copytree(root / FOLDER / "gpuwhy.service.d", tmp_path / "gpuwhy.service.d")
    return path


@pytest.fixture(scope="module")
def analyze(require_program: Callable[[str, str], str]) -> tuple[str, int]:
    program = require_program("systemd-analyze", SYSTEMD)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return program, int(re.search(r"\d+", said).group())  # type: ignore[union-attr]


def test_systemd_takes_unit_and_dropins(loadable: Path, analyze: tuple[str, int]) -> None:
    """All it says about them are the keys that it does not know yet."""
    program, version = analyze
    done = subprocess.run(
        [program, "verify", "--man=no", str(loadable)], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if loadable.name in line]
    unknown = {name for line in said for name in re.findall(r"Unknown key '?(\w+)'?", line)}
    assert unknown == {name for name, since in NEWER.items() if since > version}
    assert [line for line in said if "Unknown key" not in line] == []
    assert done.returncode == 0


@pytest.mark.parametrize(("dropin", "most"), [("", 30), ("host-evidence.conf", 35)])
def test_exposure(loadable: Path, analyze: tuple[str, int], dropin: str, most: int) -> None:
    """systemd's own score, in tenths: a right that is added shows here."""
    program, version = analyze
    if version < 250:
        pytest.skip("systemd-analyze before 250 has no --offline")
    if dropin:  # offline, drop-ins are not read
        lines = (loadable.parent / "gpuwhy.service.d" / dropin).read_text()
        loadable.write_text(loadable.read_text() + lines)
    command = [program, "security", "--no-pager", "--offline=true", f"--threshold={most}", str(loadable)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "Overall exposure level" in done.stdout
    assert done.returncode == 0, done.stdout


def test_nothing_hides_devices_and_processes(root: Path, unit: dict[str, list[str]]) -> None:
    """Neither the unit nor a drop-in of it has one of the settings that would."""
    assert not TRAPS & unit.keys()
    for name in DROPINS:
        assert not TRAPS & _settings(root / FOLDER / "gpuwhy.service.d" / name).keys(), name


def test_rights_are_none_without_the_dropin(root: Path, unit: dict[str, list[str]]) -> None:
    """The drop-in adds the two that /proc/PID/io takes, to what may be had and to what is."""
    assert unit["CapabilityBoundingSet"] == [""]
    assert "AmbientCapabilities" not in unit
    added = _settings(root / FOLDER / "gpuwhy.service.d/host-evidence.conf")
    both = ["CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"]
    assert added == {"CapabilityBoundingSet": both, "AmbientCapabilities": both}


def test_only_a_bad_configuration_is_final(unit: dict[str, list[str]]) -> None:
    """No GPU and a driver of another version may end by themselves."""
    assert unit["RestartPreventExitStatus"] == [str(cli.USAGE)]
    assert unit["Restart"] == ["on-failure"]


def test_it_cannot_crowd_out_the_work(unit: dict[str, list[str]]) -> None:
    """Memory, CPU, tasks and lines in the journal have bounds, and the memory is twice the most that was measured."""
    (high,), (most,) = (
        [int(value) for each in unit[name] for value in re.findall(r"^(\d+)M$", each)]
        for name in ("MemoryHigh", "MemoryMax")
    )
    assert high < most
    assert most >= 2 * MEASURED_MIB
    assert unit["CPUQuota"] == ["100%"]
    assert int(unit["CPUWeight"][0]) < 100  # systemd's own for all others
    assert int(unit["TasksMax"][0]) > MEASURED_THREADS
    assert int(unit["LogRateLimitBurst"][0]) > 0
    assert int(unit["LogRateLimitIntervalSec"][0]) > 0
    assert unit["LimitCORE"] == ["0"]


def test_files_are_where_the_agent_looks(root: Path, unit: dict[str, list[str]]) -> None:
    """Configuration's folder, history's folder and the user are the same everywhere."""
    assert f" --config {configuration.DEFAULT_PATH}" in unit["ExecStart"][0]
    assert (
        unit["ConfigurationDirectory"]
        == unit["StateDirectory"]
        == unit["User"]
        == unit["Group"]
        == ["gpuwhy"]
    )
    assert re.search(r"^u gpuwhy ", (root / FOLDER / "sysusers.conf").read_text(), re.MULTILINE)


def test_the_user_cannot_log_in(
    root: Path, tmp_path: Path, require_program: Callable[[str, str], str]
) -> None:
    """What systemd-sysusers makes of its file."""
    program = require_program("systemd-sysusers", SYSTEMD)
    (tmp_path / "etc").mkdir()
    command = [program, f"--root={tmp_path}", str(root / FOLDER / "sysusers.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^gpuwhy:.*:/:/\S*nologin$", (tmp_path / "etc/passwd").read_text(), re.MULTILINE)


def test_newer_settings_are_told(root: Path, unit: dict[str, list[str]]) -> None:
    """Each that an older systemd ignores stands in the documentation with its version."""
    told = (root / "docs/systemd.md").read_text()
    for name, since in NEWER.items():
        assert name in unit
        assert re.search(rf"^\| {since} \|.*`{name}`", told, re.MULTILINE), name


def test_example_configuration(root: Path, tmp_path: Path) -> None:
    """It is taken as it is, and with each of its lines switched on."""
    text = (root / FOLDER / "config.yaml").read_text()
    switched = tmp_path / "config.yaml"
    switched.write_text(re.sub(r"^#(?=[a-z ] ?[a-z_]+:)|^#(?=[a-z]+:$)", "", text, flags=re.MULTILINE))
    assert configuration.load({}, {}, root / FOLDER / "config.yaml").config == configuration.Config()
    loaded = configuration.load({}, {}, switched).config
    assert loaded.http.listen == "127.0.0.1:9837"
    assert loaded.http.web_config_file == "/etc/gpuwhy/web.yaml"
    assert loaded.agent.profile == "throughput"


# The scripts.


def _script(
    root: Path, name: str, *arguments: str, destdir: Path | str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Without a package index, and as root of some hosts would start it."""
    return subprocess.run(
        [str(root / FOLDER / name), *arguments],
        env={
            **os.environ,
            "DESTDIR": str(destdir),
            "PYTHON": sys.executable,
            "PIP_NO_INDEX": "1",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        umask=0o077,  # as some hosts give root; others have to read what is installed
    )


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python whose virtual environments have the libraries of the tests, since no index is asked."""
    program = tmp_path_factory.mktemp("python") / "python"
    program.write_text(
        f"""#!/bin/sh
'{sys.executable}' "$@" || exit
[ "$3" = venv ] || exit 0
for place; do :; done
for libraries in "$place"/lib/python*/site-packages; do
  echo '{sysconfig.get_path("purelib")}' >"$libraries/tests.pth"
done
"""
    )
    program.chmod(0o755)
    return str(program)


def _files(folder: Path) -> set[str]:
    """What is in a staged folder, without the inside of the virtual environment."""
    paths = (str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())
    return {path for path in paths if not path.startswith("opt/gpuwhy/")}


PIPS = {  # and Python's: with these it goes elsewhere, nowhere, without its libraries, or Python does not start
    "PIP_DRY_RUN": "1",
    "PIP_TARGET": "{elsewhere}/target",
    "PIP_ROOT": "{elsewhere}/root",
    "PIP_USER": "1",
    "PIP_NO_DEPS": "1",
    "PYTHONPATH": "{elsewhere}",
    "PYTHONHOME": "{elsewhere}",
}


@pytest.mark.e2e
def test_settings_of_the_caller(root: Path, tmp_path: Path, wheel: Path, python: str) -> None:
    """None of the environment matters; a file's that puts gpuwhy elsewhere is told, and the old version stays."""
    there, elsewhere = tmp_path / "host", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "msgspec.py").write_text("raise SystemExit(9)\n")
    settings = {name: value.format(elsewhere=elsewhere) for name, value in PIPS.items()}
    install = ("install.sh", "--from", str(wheel), "--extras", "")
    done = _script(root, *install, destdir=there, PYTHON=python, **settings)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in elsewhere.iterdir()] == ["msgspec.py"]
    assert list((there / "opt/gpuwhy/lib").glob("python*/site-packages/gpuwhy/cli.py"))

    (there / "opt/gpuwhy/old").touch()
    (elsewhere / "pip.conf").write_text(f"[install]\nroot = {elsewhere}/root\n")
    done = _script(root, *install, destdir=there, PYTHON=python, PIP_CONFIG_FILE=f"{elsewhere}/pip.conf")
    assert done.returncode == 1
    assert "does not start; what was there before is as it was" in done.stderr
    assert "pip config list" in done.stderr
    assert (there / "opt/gpuwhy/old").exists()
    assert {path.name for path in (there / "opt").iterdir()} == {"gpuwhy"}


@pytest.mark.e2e
def test_installed_upgraded_and_removed(root: Path, tmp_path: Path, wheel: Path, python: str) -> None:
    """Configuration, history and own drop-ins outlive upgrade and removal; --purge takes them."""
    there = tmp_path / "host"
    install = ("install.sh", "--from", str(wheel), "--extras", "")
    done = _script(root, *install, "--host-evidence", "--slurm", destdir=there, PYTHON=python)
    assert done.returncode == 0, done.stderr
    units = "etc/systemd/system"
    ours = {
        f"{units}/gpuwhy.service",
        *(f"{units}/gpuwhy.service.d/{name}" for name in DROPINS),
        "etc/sysusers.d/gpuwhy.conf",
        "usr/local/bin/gpuwhy",
    }
    assert _files(there) == {*ours, "etc/gpuwhy/config.yaml"}
    assert (there / "usr/local/bin/gpuwhy").readlink() == Path("/opt/gpuwhy/bin/gpuwhy")
    assert (there / "opt/gpuwhy/bin/gpuwhy").read_text().startswith("#!/opt/gpuwhy/bin/python")
    written = re.escape(str(there))
    for path in (*(there / "opt/gpuwhy/bin").iterdir(), there / "opt/gpuwhy/pyvenv.cfg"):
        if not path.is_symlink():
            assert not re.search(written, path.read_text(errors="replace")), path
        assert path.stat().st_mode & 0o044 == 0o044, path

    kept = {
        "etc/gpuwhy/config.yaml": "agent: {profile: latency}\n",
        f"{units}/gpuwhy.service.d/own.conf": "[Service]\nNice=1\n",
        "var/lib/gpuwhy/history.db": "history",
    }
    for name, text in kept.items():
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text(text)
    (there / "opt/gpuwhy/old").touch()
    done = _script(root, *install, destdir=there, PYTHON=python)
    assert done.returncode == 0, done.stderr
    assert _files(there) == {*ours, *kept}
    assert not (there / "opt/gpuwhy/old").exists()

    # A version that does not take the configuration changes nothing.
    (there / "opt/gpuwhy/old").touch()
    (there / "etc/gpuwhy/config.yaml").write_text("agent: {profile: odd}\n")
    done = _script(root, *install, destdir=there, PYTHON=python)
    assert done.returncode == 1
    assert "profile" in done.stderr
    assert "nothing was changed" in done.stderr
    assert (there / "opt/gpuwhy/old").exists()
    assert {path.name for path in (there / "opt").iterdir()} == {"gpuwhy"}
    (there / "etc/gpuwhy/config.yaml").write_text(kept["etc/gpuwhy/config.yaml"])

    done = _script(root, "uninstall.sh", "--dry-run", destdir=there)
    assert done.returncode == 0, done.stderr
    assert _files(there) == {*ours, *kept}
    done = _script(root, "uninstall.sh", destdir=there)
    assert done.returncode == 0, done.stderr
    assert {name: (there / name).read_text() for name in _files(there)} == kept
    assert not (there / "opt/gpuwhy").exists()
    for _ in range(2):  # also where there is nothing left
        done = _script(root, "uninstall.sh", "--purge", destdir=there)
        assert done.returncode == 0, done.stderr
        assert _files(there) == set()


def test_a_dry_run_changes_nothing(root: Path, tmp_path: Path) -> None:
    """It names the files, and another prefix is another one everywhere."""
    done = _script(root, "install.sh", "--dry-run", "--slurm", "--prefix", "/srv/why", destdir=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []
    assert f"{tmp_path}/srv/why" in done.stdout
    assert "slurm.conf" in done.stdout
    assert "/opt/gpuwhy" not in done.stdout
    assert f"would write {tmp_path}/etc/systemd/system/gpuwhy.service\n" in done.stdout
    defined = re.findall(r"^(\w+)\(\)", (root / FOLDER / "install.sh").read_text(), re.MULTILINE)
    assert not re.search(rf"would run: ({'|'.join(defined)})\b", done.stdout)
    assert "nothing was done" in done.stdout.splitlines()[-1]


STUBS = {
    "id": "echo 0",
    "getent": "exit 0",
    "restorecon": "exit 0",
    "systemctl": '[ "$1" = show ] && echo "${RELOAD:-no}" || echo "systemctl $*"',
    # Makes an environment whose programs agree to everything.
    "python": 'for to; do :; done; [ "$3" != venv ] || { mkdir -p "$to/bin"; : >"$to/pyvenv.cfg";'
    ' for each in python gpuwhy; do echo "#!/bin/sh" >"$to/bin/$each"; chmod 755 "$to/bin/$each"; done; }',
}


@pytest.fixture
def host(root: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a script as root of a host with systemd: all its paths are in a folder, its systemctl says what it was told."""
    for folder in ("bin", "etc", "run/systemd/system"):
        (tmp_path / folder).mkdir(parents=True)
    for name, line in STUBS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    shutil.copytree(root / FOLDER, tmp_path / FOLDER)
    for script in (tmp_path / FOLDER).glob("*.sh"):
        text = re.sub(r"(?<=[ R])/(etc|run/systemd|usr/local)/", rf"{tmp_path}/\1/", script.read_text())
        script.write_text(text)

    def run(name: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment |= {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PYTHON": f"{tmp_path}/bin/python"}
        return _script(tmp_path, name, *arguments, **environment)

    return run


@pytest.fixture
def on_a_host(
    tmp_path: Path, host: Callable[..., subprocess.CompletedProcess[str]]
) -> Callable[..., list[str]]:
    """Likewise with a prefix in that folder, and it has to end well; what it said."""

    def run(name: str, *arguments: str, **environment: str) -> list[str]:
        done = host(name, "--prefix", f"{tmp_path}/opt/why", *arguments, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


RELOAD = "systemctl daemon-reload"


def test_systemd_is_reloaded_for_a_change_alone(tmp_path: Path, on_a_host: Callable[..., list[str]]) -> None:
    """A reload can take the GPUs from containers: none without need, none unannounced, none by enabling."""
    first = on_a_host("install.sh")
    at = first.index(RELOAD)
    assert "containers" in first[at - 1]
    restarts = "systemctl restart gpuwhy.service"
    assert first.index("systemctl enable --quiet --no-reload gpuwhy.service") < at < first.index(restarts)

    again = on_a_host("install.sh")
    assert RELOAD not in again
    assert restarts in again
    assert RELOAD in on_a_host("install.sh", "--slurm")
    assert RELOAD not in on_a_host("install.sh", "--slurm")
    assert RELOAD in on_a_host("install.sh", RELOAD="yes")  # one before it got no further than the files
    unit = tmp_path / FOLDER / "gpuwhy.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=60", "WatchdogSec=61"))
    assert not [line for line in on_a_host("install.sh", "--no-start") if line.startswith("systemctl")]
    assert "WatchdogSec=61" in (tmp_path / "etc/systemd/system/gpuwhy.service").read_text()

    gone = on_a_host("uninstall.sh")
    assert "containers" in gone[gone.index(RELOAD) - 1]
    assert "systemctl disable --quiet --no-reload --now gpuwhy.service" in gone
    assert not (tmp_path / "etc/systemd/system/gpuwhy.service").exists()


def test_names_beside_it_are_others(tmp_path: Path, on_a_host: Callable[..., list[str]]) -> None:
    """A backup that somebody made stays; what a killed install.sh left goes, but for the only version there is."""
    backups = [tmp_path / "opt/why.old", tmp_path / "opt/why.new"]
    for backup in backups:
        backup.mkdir(parents=True)
        (backup / "kept").touch()
    on_a_host("install.sh")
    on_a_host("install.sh")
    assert {path.name for path in (tmp_path / "opt").iterdir()} == {"why", "why.old", "why.new"}

    (tmp_path / "opt/why").rename(tmp_path / "opt/.why.gpuwhy-old")
    (tmp_path / "opt/.why.gpuwhy-new").mkdir()
    on_a_host("install.sh")
    assert {path.name for path in (tmp_path / "opt").iterdir()} == {"why", "why.old", "why.new"}

    (tmp_path / "opt/.why.gpuwhy-new").mkdir()
    on_a_host("uninstall.sh")
    assert {path.name for path in (tmp_path / "opt").iterdir()} == {"why.old", "why.new"}
    assert all((backup / "kept").exists() for backup in backups)


def test_the_old_version_is_put_back(
    tmp_path: Path,
    on_a_host: Callable[..., list[str]],
    host: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """One that was killed between its two moves is mended by the next, even by one that fails."""
    on_a_host("install.sh")
    (tmp_path / "opt/why").rename(tmp_path / "opt/.why.gpuwhy-old")
    (tmp_path / "bin/python").write_text('#!/bin/sh\n[ "$3" != venv ]\n')
    assert host("install.sh", "--prefix", f"{tmp_path}/opt/why").returncode == 1
    assert [path.name for path in (tmp_path / "opt").iterdir()] == ["why"]


def test_one_at_a_time(
    tmp_path: Path,
    on_a_host: Callable[..., list[str]],
    host: Callable[..., subprocess.CompletedProcess[str]],
    require_program: Callable[[str, str], str],
) -> None:
    """A second install.sh on the same folder ends at once, and touches nothing of the first."""
    require_program("flock", "your distribution's package util-linux")
    on_a_host("install.sh")
    (tmp_path / "opt/.why.gpuwhy-new").mkdir()
    held = os.open(tmp_path / "opt", os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = host("install.sh", "--prefix", f"{tmp_path}/opt/why")
    finally:
        os.close(held)
    assert done.returncode == 1
    assert "another install.sh is at work" in done.stderr
    assert (tmp_path / "opt/.why.gpuwhy-new").exists()
    on_a_host("install.sh")


def test_removed_from_where_it_is(
    tmp_path: Path,
    on_a_host: Callable[..., list[str]],
    host: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """Without --prefix the unit says where; another one that is given leaves that folder, and says so."""
    on_a_host("install.sh")
    (tmp_path / "opt/another").mkdir()
    refused = host("uninstall.sh", "--prefix", f"{tmp_path}/opt/another")
    assert refused.returncode == 2
    assert (tmp_path / "etc/systemd/system/gpuwhy.service").exists()

    done = host("uninstall.sh", "--prefix", f"{tmp_path}/nowhere")
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/opt/why is there too, and stays" in done.stdout
    on_a_host("install.sh")
    done = host("uninstall.sh")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "opt/why").exists()


def test_a_broken_installation_is_removed(
    tmp_path: Path,
    on_a_host: Callable[..., list[str]],
    host: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    """The unit goes; a folder that is no whole installation stays, with the command for it."""
    on_a_host("install.sh")
    (tmp_path / "opt/why/bin/gpuwhy").unlink()
    done = host("uninstall.sh")
    assert done.returncode == 1
    assert f"rm -r {tmp_path}/opt/why" in done.stderr
    assert RELOAD in done.stdout
    assert (tmp_path / "opt/why/pyvenv.cfg").exists()
    assert not list((tmp_path / "etc/systemd/system").rglob("*"))


@pytest.mark.parametrize(
    ("command", "environment", "words"),
    [
        ("install.sh --quick", {}, ("--quick", "--help")),
        ("install.sh --prefix", {}, ("--prefix", "value")),
        ("install.sh --prefix opt", {}, ("opt", "absolute")),
        ("install.sh --prefix /", {}, ("--prefix /:",)),
        ("install.sh --prefix /opt/my gpuwhy", {}, ("/opt/my gpuwhy",)),
        ("install.sh --prefix /opt/../etc", {}, ("/opt/../etc",)),
        ("install.sh --prefix /home/me/gpuwhy", {}, ("/home/me/gpuwhy", "home folders")),
        ("install.sh --prefix //home/me/gpuwhy", {}, ("//home/me/gpuwhy",)),
        ("install.sh --prefix /./home/me/gpuwhy", {}, ("/./home/me/gpuwhy",)),
        ("install.sh --prefix /run/user/0/gpuwhy", {}, ("/run/user/0/gpuwhy", "home folders")),
        ("install.sh --from /nowhere.whl", {}, ("/nowhere.whl",)),
        ("install.sh", {"DESTDIR": "stage"}, ("DESTDIR=stage", "absolute")),
        ("uninstall.sh --quick", {}, ("--quick", "--help")),
        ("uninstall.sh --prefix opt", {}, ("--prefix opt", "absolute")),
        ("uninstall.sh --prefix //opt/gpuwhy", {}, ("//opt/gpuwhy",)),
        ("uninstall.sh --prefix /etc", {"DESTDIR": ""}, ("/etc", "no virtual environment")),
    ],
)
def test_refusals(
    root: Path,
    tmp_path: Path,
    command: str,
    environment: dict[str, str],
    words: tuple[str, ...],
) -> None:
    """Each says what was given and what to do, and nothing has been done."""
    name, *arguments = command.split(maxsplit=2)
    done = _script(root, name, "--dry-run", *arguments, **{"DESTDIR": str(tmp_path), **environment})
    assert done.returncode == 2
    assert all(word in done.stderr for word in (*words, "remedy: "))
    assert list(tmp_path.iterdir()) == []


def test_a_python_that_does_not_fit(root: Path, tmp_path: Path) -> None:
    """The one that was named is named, with what to install."""
    done = _script(root, "install.sh", destdir=tmp_path, PYTHON="/bin/false")
    assert done.returncode == 1
    assert "PYTHON=/bin/false" in done.stderr
    assert "python3-venv" in done.stderr


def test_a_python_in_a_home_folder(root: Path, tmp_path: Path) -> None:
    """The unit would not see it: passed over, also to stage, unless it was named; then it is taken with a warning."""
    for name in ("3.13", "3.12", "3.11", "3.10", "3"):
        program = tmp_path / f"bin/python{name}"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"""#!/bin/sh
if [ "$1 $2" = "-I -" ]; then shift 2; set -- -I -c 'import sys; sys.base_prefix = "/home/me"; exec(sys.stdin.read())' "$@"; fi
exec '{sys.executable}' "$@"
"""
        )
        program.chmod(0o755)
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    dry = ("install.sh", "--dry-run", "--extras", "")
    passed_over = _script(root, *dry, destdir=tmp_path / "host", PATH=path, PYTHON="")
    assert f"with {tmp_path}/bin" not in passed_over.stdout
    if passed_over.returncode != 0:  # there is no other
        assert "outside of home folders" in passed_over.stderr

    named = _script(root, *dry, destdir=tmp_path / "host", PATH=path, PYTHON="python3")
    assert named.returncode == 0, named.stderr
    assert f"with {tmp_path}/bin/python3, " in named.stdout
    assert "warning: PYTHON=python3 is in a home folder" in named.stderr
    for_here = _script(root, *dry, PATH=path, PYTHON="python3")
    assert for_here.returncode == 1
    assert "outside of home folders" in for_here.stderr


@pytest.mark.parametrize("name", ["install.sh", "uninstall.sh"])
def test_without_root(root: Path, tmp_path: Path, name: str) -> None:
    """It says so before it does anything."""
    (tmp_path / "id").write_text("#!/bin/sh\necho 1000\n")
    (tmp_path / "id").chmod(0o755)
    done = _script(root, name, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "not root" in done.stderr
    assert "sudo" in done.stderr


@pytest.mark.parametrize("name", ["install.sh", "uninstall.sh"])
def test_help_names_every_option(root: Path, name: str) -> None:
    """What the script takes is what it says."""
    done = _script(root, name, "--help")
    assert done.returncode == 0
    taken = re.findall(
        r"^ {4}(--[a-z-]+)(?: \| (--[a-z-]+))*\)", (root / FOLDER / name).read_text(), re.MULTILINE
    )
    assert all(option in done.stdout for options in taken for option in options)
    assert len(taken) >= 2
