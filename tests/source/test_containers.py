"""What container engines keep on disk: names, images, compose labels, and anything else in their place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwhy.source import SourceError
from gpuwhy.source.containers import Container, Containers

from .host_trees import CONTAINER, HostTree

OTHER = "d" * 64
COMPOSE = {"com.docker.compose.project": "chat", "com.docker.compose.service": "llm"}


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)


def test_docker(tree: HostTree) -> None:
    tree.docker(CONTAINER, name="chat-llm-1", image="vllm/vllm-openai:v0.6", labels=COMPOSE)
    tree.docker(OTHER, name="trainer", image="pytorch")
    reader = Containers(tree.containers)
    assert reader.present()
    assert reader.read() == {
        CONTAINER: Container(CONTAINER, "chat-llm-1", "vllm/vllm-openai:v0.6", "chat", "llm"),
        OTHER: Container(OTHER, "trainer", "pytorch"),
    }


def test_podman_both_lists(tree: HostTree) -> None:
    file = tree.podman({"id": CONTAINER, "name": "serve", "image": "quay.io/a/serve:1"})
    gone = json.loads(file.read_text())[0] | {"id": OTHER, "names": ["once"]}
    file.with_name("volatile-containers.json").write_text(json.dumps([gone]))
    found = Containers(tree.containers).read()
    assert found[CONTAINER] == Container(CONTAINER, "serve", "quay.io/a/serve:1")
    assert found[OTHER].name == "once"


def test_a_data_root_elsewhere(tree: HostTree) -> None:
    file = tree.docker(CONTAINER, name="a", image="b")
    moved = tree.containers / "data" / "docker"
    moved.mkdir(parents=True)
    file.parent.parent.rename(moved / "containers")
    assert not Containers(tree.containers).read()
    config = tree.containers / "etc/docker/daemon.json"
    config.parent.mkdir(parents=True)
    config.write_text('{"data-root": "/data/docker"}')
    assert Containers(tree.containers).read()[CONTAINER].name == "a"


def test_what_does_not_change_is_not_read_again(tree: HostTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.docker(CONTAINER, name="before", image="b")
    reader = Containers(tree.containers)
    first = reader.read()
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (opened.append(str(path)), real(path, *rest))[1])
    assert reader.read() == first
    assert not [path for path in opened if path.endswith("config.v2.json")]
    tree.docker(CONTAINER, name="after, longer", image="b")
    assert reader.read()[CONTAINER].name == "after, longer"


def test_what_ends_is_forgotten(tree: HostTree) -> None:
    file = tree.docker(CONTAINER, name="a", image="b")
    reader = Containers(tree.containers)
    assert reader.read()
    file.unlink()
    assert not reader.read()
    assert not reader._known


def test_no_engine(tmp_path: Path) -> None:
    reader = Containers(tmp_path)
    assert not reader.present()
    assert reader.read() == {}


def test_a_folder_that_may_not_be_listed_says_what_helps(
    tree: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.docker(CONTAINER, name="a", image="b")
    real = os.scandir

    def refuse(path):
        if str(path).endswith("containers"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=r"lib/docker/containers: Permission denied; .* root"):
        Containers(tree.containers).read()
    tree.podman({"id": OTHER, "name": "serve", "image": "x"})
    assert list(Containers(tree.containers).read()) == [OTHER]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"ID": 5}',
        b'{"ID": "short"}',
        b'{"ID": "%s", "Name": 5, "Config": [], "x": NaN}' % CONTAINER.encode(),
        b'{"ID": "%s", "Config": {"Image": null, "Labels": ["a"]}}' % CONTAINER.encode(),
        b'{"ID": "%s", "Name": "%s"}' % (CONTAINER.encode(), b"x" * (1 << 20)),
    ],
)
def test_files_that_are_something_else(tree: HostTree, content: bytes) -> None:
    file = tree.docker(CONTAINER, name="a", image="b")
    tree.docker(OTHER, name="good", image="b")
    file.write_bytes(content)
    found = Containers(tree.containers).read()
    assert found[OTHER].name == "good"
    assert found.get(CONTAINER, Container(CONTAINER)) == Container(CONTAINER)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["ID", "id", "Name", "names", "Config", "Image", "Labels", "metadata", "image-name"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_json_raises(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.docker(CONTAINER, name="a", image="b").write_text(json.dumps(value))
    tree.podman().write_text(json.dumps(value))
    for container in Containers(tree.containers).read().values():
        assert isinstance(container.name, str)
        assert isinstance(container.image, str)


NAME = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)


@given(NAME, NAME)
def test_names_come_as_they_are(tmp_path_factory: pytest.TempPathFactory, name: str, image: str) -> None:
    tree = HostTree(tmp_path_factory.mktemp("host"))
    tree.docker(CONTAINER, name=name, image=image)
    tree.podman({"id": OTHER, "name": name, "image": image})
    found = Containers(tree.containers).read()
    assert found[CONTAINER] == Container(CONTAINER, name, image)
    assert (found[OTHER].name, found[OTHER].image) == (name, image)
