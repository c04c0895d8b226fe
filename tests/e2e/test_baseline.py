"""`gpuwhy baseline` as installed: saved and compared through recordings, and through a store that they were played into."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.baseline import made
from tests.store.made import write

from gpuwhy import config as configuration
from gpuwhy import daemon
from gpuwhy.source.replay import load

MINUTES = 16


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A training run, the same again, and one whose host is too slow now and then."""
    folder = tmp_path_factory.mktemp("recordings")
    slow = ["train_gpt"] * 6 + ["jpeg_2w"]
    loads = {"before": (["train_gpt"], 1), "same": (["train_gpt"], 2), "slower": (slow, 3)}
    return {
        name: made.looped(folder / f"{name}.jsonl.gz", names, 60.0 * MINUTES, seed=seed)
        for name, (names, seed) in loads.items()
    }


def test_recordings(installed_gpuwhy: Any, recordings: dict[str, Path]) -> None:
    """Saved, compared with the same load (0) and with a slower one (10), in every format."""
    saved = installed_gpuwhy(
        "baseline", "save", "e2e", "--replay", str(recordings["before"]), "--progress", "items_per_second=100"
    )
    assert saved.returncode == 0, saved.stderr
    same = installed_gpuwhy("baseline", "compare", "e2e", "--replay", str(recordings["same"]))
    assert same.returncode == 0, same.stdout + same.stderr
    assert same.stdout.startswith("No regression beyond noise; a loss of 2.")
    slower = installed_gpuwhy(
        *(
            "baseline",
            "compare",
            "e2e",
            "--replay",
            str(recordings["slower"]),
            "--progress",
            "items_per_second=90",
        ),
        *("--format", "json"),
    )
    assert slower.returncode == 10, slower.stdout + slower.stderr
    found = json.loads(slower.stdout)
    assert found["outcome"] == "regression"
    assert "lost to starving/cpu-preprocess" in found["headline"] or found["figures"][0]["worse"]
    assert "items_per_second \u221210.0 % (not tested)" in found["headline"]
    text = installed_gpuwhy(
        "baseline", "compare", "e2e", "--replay", str(recordings["slower"]), "--format", "markdown"
    )
    assert text.returncode == 10
    assert text.stdout.startswith("**Regression: efficiency fell by ")
    short = installed_gpuwhy(
        "baseline", "compare", "e2e", "--replay", str(min(installed_gpuwhy.recordings.iterdir()))
    )
    assert short.returncode in {1, 11}, short.stdout + short.stderr
    assert installed_gpuwhy("baseline", "delete", "e2e").returncode == 0


def test_a_store(installed_gpuwhy: Any, recordings: dict[str, Path], tmp_path: Path) -> None:
    """The same through the local history: minutes of a replay that was played into it."""
    config = configuration.load({}, {}, None).config
    for name, path in recordings.items():
        _, judged = daemon.judge_recording(load(path), config)
        write(
            tmp_path / f"{name}.db",
            (each for interval in judged for each in interval.verdicts),
            source="replay",
        )
    window = ("--from", f"{made.START:.0f}", "--to", f"{made.START + 60 * MINUTES:.0f}")
    places = {name: ("--source", f"store:{tmp_path / name}.db", *window) for name in recordings}
    assert installed_gpuwhy("baseline", "save", "e2e-store", *places["before"]).returncode == 0
    same = installed_gpuwhy("baseline", "compare", "e2e-store", *places["same"])
    assert same.returncode == 0, same.stdout + same.stderr
    assert "min, store)" in same.stdout
    slower = installed_gpuwhy("baseline", "compare", "e2e-store", *places["slower"])
    assert slower.returncode == 10, slower.stdout + slower.stderr
    assert installed_gpuwhy("baseline", "list").stdout.splitlines()[1].startswith("e2e-store")
