"""The playbook: every cause has advice that can be followed and that harms nothing."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter

import pytest

from gpuwhy.verdict.playbook import PLAY_BY_KEY, PLAYBOOK, Play, next_steps
from gpuwhy.verdict.vocabulary import CAUSES

each_play = pytest.mark.parametrize("play", PLAYBOOK, ids=lambda play: "/".join(play.key))

# Programs that the advice may name. A new one is added here after its options were checked.
# fmt: off
PROGRAMS = frozenset({
    "all_reduce_perf", "cat", "cut", "dcgmi", "dmesg", "gpuwhy", "grep", "ipmitool", "kubectl", "ncu", "nproc", "nsys",
    "nvidia-bug-report.sh", "nvidia-smi", "perf", "pidstat", "ps", "py-spy", "scontrol", "sinfo", "systemctl", "top",
})
# fmt: on
GPUWHY_COMMANDS = frozenset({"baseline", "doctor", "explain"})
# nvidia-smi options that read and never set. Clocks, limits, modes and resets have no place here.
READING_OPTIONS = re.compile(r"-q|-d|-i|-c|-s|-m|-L|--status|--query-(gpu|compute-apps)=[\w.,]+|--format=csv")
READING_MODES = frozenset({"dmon", "nvlink", "topo"})
ASSIGNMENTS = re.compile(r"[A-Z_]+=\S+( [A-Z_]+=\S+)*")


def filled(play: Play, pid: int | None = 4242) -> tuple[str, ...]:
    return next_steps(*play.key, gpu_index=3, pid=pid)


def commands(step: str) -> list[str]:
    return re.findall(r"`([^`]+)`", step)


def words_only(step: str) -> str:
    return re.sub(r"`[^`]+`", "", step)


def is_python(command: str) -> bool:
    try:
        ast.parse(command)
    except SyntaxError:
        return False
    return "torch" in command or command.startswith("print(")


def shell_words(command: str) -> list[list[str]]:
    """The words of each program in a pipeline, those inside ``$( )`` too."""
    parts = re.split(r"\s\|\s|\$\(|\)", command)
    return [words for part in parts if (words := shlex.split(part)) and not words[0].startswith("/")]


def shell_commands(play: Play) -> list[list[str]]:
    return [
        words
        for step in filled(play)
        for command in commands(step)
        if not is_python(command) and not ASSIGNMENTS.fullmatch(command)
        for words in shell_words(command)
    ]


def test_every_cause_has_exactly_one_play_and_no_play_is_left_over() -> None:
    """A cause added to or dropped from the vocabulary is named here until the playbook follows."""
    wanted, have = Counter(cause.key for cause in CAUSES), Counter(play.key for play in PLAYBOOK)
    assert have - wanted == Counter(), "plays without a cause, or twice"
    assert wanted - have == Counter(), "causes without a play"
    assert len(PLAY_BY_KEY) == len(CAUSES)


def test_plays_stand_in_the_order_of_the_vocabulary() -> None:
    """Rendered tables follow the vocabulary, so that a reader finds a row where it is expected."""
    assert [play.key for play in PLAYBOOK] == [cause.key for cause in CAUSES]


@each_play
def test_a_play_has_one_to_five_different_steps_and_says_when_it_does_not_apply(play: Play) -> None:
    """Nobody reads a sixth step, and no verdict is without an exception, a test and a source."""
    assert 1 <= len(play.steps) <= 5
    assert len(set(play.steps)) == len(play.steps)
    for text in (play.when_normal, play.confirm):
        assert text.endswith(".")
        assert 30 <= len(text) <= 320, len(text)
    assert play.source


@each_play
def test_steps_are_short_sentences(play: Play) -> None:
    """The words of a step fit one line beside the command; the command comes on top."""
    for step in filled(play):
        assert step[0].isupper()
        assert step.endswith(".")
        assert step.count("`") % 2 == 0
        assert 15 <= len(words_only(step)) <= 160, step
        assert len(step) <= 250, (len(step), step)


@each_play
def test_placeholders_are_filled_and_stand_in_steps_only(play: Play) -> None:
    """No reader ever sees a brace; the pid and the GPU's index arrive where the row asks for them."""
    for step, text in zip(play.steps, filled(play), strict=True):
        assert not re.search(r"[{}]", text), text
        assert ("{pid}" in step) == bool(re.search(r"\b4242\b", text))
        assert ("{gpu}" in step) == bool(re.search(r"-i 3\b", text))
    assert not re.search(r"[{}]", play.when_normal + play.confirm + play.source)


def test_without_a_pid_the_text_stays_readable() -> None:
    """An unknown owner leaves the word PID, which the reader replaces."""
    first = next_steps("starving", "host-serial", gpu_index=0, pid=None)[0]
    assert "py-spy dump -p PID" in first
    assert "None" not in " ".join(step for play in PLAYBOOK for step in filled(play, pid=None))


def test_advice_is_the_same_each_time() -> None:
    """The same verdict gives the same text, so outputs can be compared."""
    assert [filled(play) for play in PLAYBOOK] == [filled(play) for play in PLAYBOOK]


def test_a_cause_outside_the_vocabulary_is_an_error() -> None:
    """A misspelt cause must not pass as a cause without advice."""
    with pytest.raises(KeyError):
        next_steps("starving", "bandwidth", gpu_index=0, pid=None)


@each_play
def test_commands_are_known_programs_or_python_that_parses(play: Play) -> None:
    """A typing error in a command is found here and not by an operator at night."""
    for words in shell_commands(play):
        assert words[0] in PROGRAMS, words
        if words[0] == "gpuwhy":
            assert words[1] in GPUWHY_COMMANDS, words


@each_play
def test_nvidia_smi_is_only_ever_asked(play: Play) -> None:
    """No step sets a clock, a limit or a mode, or resets a GPU, by nvidia-smi."""
    for words in shell_commands(play):
        if words[0] != "nvidia-smi":
            continue
        options = [word for word in words[1:] if word.startswith("-")]
        modes = {word for word in words[1:2] if not word.startswith("-")}
        assert modes <= READING_MODES, words
        assert all(READING_OPTIONS.fullmatch(option) for option in options), words
        # Harmless after these words only: without dmon, "-c" would set the compute mode.
        assert "dmon" in modes or not {"-s", "-c"} & set(options), words
        assert "topo" in modes or "-m" not in options, words


@each_play
def test_changing_a_host_is_left_to_its_owner(play: Play) -> None:
    """Advice that changes clocks, limits or services says whose decision that is."""
    changing = re.compile(
        r"\b(restore|return|raise|lower|reset|remove|take|set|unlock|change)\b[^.;]*\b(clocks?|limits?|boost|group)\b"
        r"|power-cycle|reboot|systemctl restart|--pause|--resume",
        re.IGNORECASE,
    )
    for step in play.steps:
        if changing.search(step) and not step.startswith(("Ask ", "Tell ")):
            assert "if you own this host" in step.lower(), step
        assert not re.search(r"\bkill\b(?!=none)|pkill|sudo|rm -|modprobe|rmmod", step), step


@each_play
def test_profilers_leave_the_program_and_the_clocks_alone(play: Play) -> None:
    """By default nsys ends the program with the recording and ncu pins the clock: ours do neither."""
    for words in shell_commands(play):
        if words[:2] == ["nsys", "profile"]:
            assert "--kill=none" in words
            assert "-p" not in words
            assert "--pid" not in words
        if words[0] == "ncu":
            assert words[words.index("--clock-control") + 1] == "none"


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (("starving", "host-serial"), "spins"),
        (("starving", "launch-bound"), "20-30 %"),
        (("starving", "copy"), "GPU-Util near 100 %"),
        (("memory-bound", "bandwidth"), "decode"),
        (("throttled", "power-cap"), "at full load is healthy"),
        (("throttled", "hw-thermal"), "idle GPU"),
        (("throttled", "sw-thermal"), "idle GPU"),
        (("pseudo-peak", "spin-wait"), "Low power alone proves nothing"),
        (("healthy", "compute"), "0.73 of the maximum clock"),
        (("idle", "no-demand"), "poll"),
    ],
)
def test_evidence_that_fools_people_is_named(key: tuple[str, str], told: str) -> None:
    """The traps that measurements and field reports showed stay written beside their verdict."""
    assert told in PLAY_BY_KEY[key].when_normal
