"""`fetch` against a server on this machine that can resume, break off, lie and refuse."""

import dataclasses
import errno
import hashlib
import io
import shutil
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from layouts import write_cifar10

import simnets.data.download as module
from simnets.data import fetch, load_dataset
from simnets.data.archive import extract
from simnets.data.download import download
from simnets.data.official import CIFAR10, OFFICIAL, SVHN, Download, OfficialFile
from simnets.errors import SimNetsError


class Server(ThreadingHTTPServer):
    """Serves `files`; `behaviour` is what goes wrong, once for each entry, then all goes well."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.behaviour: list[str] = []
        self.ranges: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def item(self, name: str, sha256: str | None = None, size: int | None = None) -> Download:
        content = self.files[name]
        digest = sha256 or hashlib.sha256(content).hexdigest()
        return Download(f"{self.url}/{name}", size or len(content), digest)


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        behaviour = self.server.behaviour.pop(0) if self.server.behaviour else ""
        if behaviour == "silent":
            return None  # closes the connection without a word
        if behaviour.isdigit():
            return self.send_error(int(behaviour))
        content = self.server.files[self.path[1:]]
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
        if start and start >= len(content):
            return self.send_error(416)
        if start and behaviour != "no ranges":
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            content = content[start:]
        else:
            self.send_response(200)
        if behaviour != "no length":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if behaviour == "break":
            content = content[: len(content) // 2]
        self.wfile.write(content)
        return None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "PAUSES", (0.0, 0.0))
    with Server() as running:
        running.files["data.bin"] = np.random.default_rng(0).bytes(1_000_003)
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def test_plain_download_and_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    download(server.item("data.bin"), tmp_path / "out", lambda *args: seen.append(args))
    assert (tmp_path / "out").read_bytes() == server.files["data.bin"]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert {(name, total) for name, _, total in seen} == {("data.bin", 1_000_003)}
    amounts = [done for _, done, _ in seen]
    assert amounts == sorted(amounts)
    assert amounts[-1] == 1_000_003
    assert len(amounts) > 2


@pytest.mark.parametrize("behaviour", [[], ["no ranges"], ["no length"], ["503"], ["silent"]])
def test_resumes_what_is_there(server: Server, tmp_path: Path, behaviour: list[str]) -> None:
    (tmp_path / "out.part").write_bytes(server.files["data.bin"][:400_000])
    server.behaviour = behaviour
    download(server.item("data.bin"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == server.files["data.bin"]
    assert server.ranges[0] == "bytes=400000-"


def test_goes_on_by_itself_after_a_break(server: Server, tmp_path: Path) -> None:
    server.behaviour = ["break", "break"]
    download(server.item("data.bin"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == server.files["data.bin"]
    assert server.ranges == [None, "bytes=500001-", "bytes=750002-"]


def test_gives_up_and_keeps_what_came(server: Server, tmp_path: Path) -> None:
    server.behaviour = ["break"] * 3
    with pytest.raises(
        SimNetsError, match=r"data.bin: could not be fetched .875,002 of 1,000,003 bytes came"
    ):
        download(server.item("data.bin"), tmp_path / "out")
    assert (tmp_path / "out.part").stat().st_size == 875_002
    assert not (tmp_path / "out").exists()
    download(server.item("data.bin"), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == server.files["data.bin"]
    assert server.ranges[-1] == "bytes=875002-"


def test_a_complete_part_needs_no_server(tmp_path: Path) -> None:
    (tmp_path / "out.part").write_bytes(b"whole")
    digest = hashlib.sha256(b"whole").hexdigest()
    download(Download("http://127.0.0.1:1/x", 5, digest), tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"whole"


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    with pytest.raises(SimNetsError, match=r"data.bin: its SHA-256 is .*expected 0000"):
        download(server.item("data.bin", sha256="0" * 64), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file(server: Server, tmp_path: Path) -> None:
    item = server.item("data.bin")
    (tmp_path / "out.part").write_bytes(b"x" * 100)
    with pytest.raises(SimNetsError, match="SHA-256"):
        download(item, tmp_path / "out")
    (tmp_path / "out.part").write_bytes(b"x" * 2_000_000)  # longer than it can be: begun anew
    download(item, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == server.files["data.bin"]


def test_the_servers_file_has_another_size(server: Server, tmp_path: Path) -> None:
    with pytest.raises(SimNetsError, match="larger than the official 1,000 bytes"):
        download(server.item("data.bin", size=1000), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    server.ranges.clear()
    with pytest.raises(SimNetsError, match="could not be fetched"):
        download(server.item("data.bin", size=2_000_000), tmp_path / "out")
    assert server.ranges == [None, "bytes=1000003-", None]  # 416 means: begin anew


def test_refusals_name_the_reason(server: Server, tmp_path: Path) -> None:
    server.behaviour = ["404"]
    with pytest.raises(
        SimNetsError, match=r"data.bin: could not be fetched .the server answered HTTP Error 404"
    ):
        download(server.item("data.bin"), tmp_path / "out")
    assert len(server.ranges) == 1
    item = server.item("data.bin")
    server.shutdown()
    server.server_close()
    with pytest.raises(SimNetsError, match=r"could not be fetched .Connection refused"):
        download(item, tmp_path / "out")


# fetch as a whole


@pytest.fixture
def tiny_cifar10(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An official CIFAR-10 of 2 images a batch, on the server; returns its unpacked source folder."""
    source = tmp_path / "source" / "cifar-10-batches-bin"
    write_cifar10(source, np.random.default_rng(0))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(source, source.name)
    server.files["cifar-10-binary.tar.gz"] = buffer.getvalue()

    def pinned(files: tuple[OfficialFile, ...]) -> tuple[OfficialFile, ...]:
        digest = {f.name: hashlib.sha256((source / f.name).read_bytes()).hexdigest() for f in files}
        return tuple(OfficialFile(f.name, 2, digest[f.name]) for f in files)

    tiny = dataclasses.replace(
        CIFAR10,
        train=pinned(CIFAR10.train),
        test=pinned(CIFAR10.test),
        downloads=(server.item("cifar-10-binary.tar.gz"),),
        unpacked_size=100_000,
    )
    monkeypatch.setitem(OFFICIAL, "cifar10", tiny)
    return source


def test_fetch_an_archive(server: Server, tiny_cifar10: Path, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "root"
    (root / ".unpack-cifar10").mkdir(parents=True)
    (root / ".unpack-cifar10" / "left over").write_text("by a fetch that was killed")
    folder = fetch("cifar10", root)
    assert folder == root / "cifar-10-batches-bin"
    assert [p.name for p in root.iterdir()] == ["cifar-10-batches-bin"]
    assert len(load_dataset("cifar10", "train", root)) == 10
    server.ranges.clear()
    assert fetch("cifar10", root) == folder  # all there: nothing is asked for
    assert server.ranges == []
    for lost in ("data_batch_4.bin", "batches.meta.txt"):
        (folder / lost).unlink()
        fetch("cifar10", root)
        assert (folder / lost).read_bytes() == (tiny_cifar10 / lost).read_bytes()


def test_fetch_overwrites_nothing(server: Server, tiny_cifar10: Path, tmp_path: Path) -> None:
    folder = tmp_path / "root" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "data_batch_2.bin").write_bytes(b"mine")
    with pytest.raises(SimNetsError, match=r"data_batch_2.bin: exists and is not the official file"):
        fetch("cifar10", tmp_path / "root")
    assert (folder / "data_batch_2.bin").read_bytes() == b"mine"
    assert server.ranges == []


def test_fetch_uses_an_archive_that_is_there(server: Server, tiny_cifar10: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    archive = root / "cifar-10-binary.tar.gz"
    archive.write_bytes(server.files["cifar-10-binary.tar.gz"][:-5])
    with pytest.raises(SimNetsError, match="is not the official archive, or is cut short"):
        fetch("cifar10", root)
    archive.write_bytes(server.files["cifar-10-binary.tar.gz"])
    fetch("cifar10", root)
    assert server.ranges == []
    assert archive.exists()  # it was not ours to delete
    assert len(load_dataset("cifar10", "test", root)) == 2


def test_fetch_plain_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["train_32x32.mat"], server.files["test_32x32.mat"] = b"train" * 1000, b"test" * 1000
    items = server.item("train_32x32.mat"), server.item("test_32x32.mat")
    tiny = dataclasses.replace(
        SVHN,
        train=(OfficialFile("train_32x32.mat", 1, items[0].sha256),),
        test=(OfficialFile("test_32x32.mat", 1, items[1].sha256),),
        downloads=items,
    )
    monkeypatch.setitem(OFFICIAL, "svhn", tiny)
    server.behaviour = ["", "404"]
    with pytest.raises(SimNetsError, match=r"test_32x32.mat: could not be fetched"):
        fetch("svhn", tmp_path)
    server.ranges.clear()
    fetch("svhn", tmp_path)
    assert len(server.ranges) == 1  # the train file was there already
    assert (tmp_path / "svhn" / "train_32x32.mat").read_bytes() == b"train" * 1000
    assert (tmp_path / "svhn" / "test_32x32.mat").read_bytes() == b"test" * 1000


def test_too_little_space_is_said_before_the_transfer(
    server: Server, tiny_cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SimNetsError, match="needs 0 MB and has 0 MB free"):
        fetch("cifar10", tmp_path / "root")
    assert server.ranges == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(server: Server, tiny_cifar10: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "cifar-10-binary.tar.gz.part").symlink_to("/dev/full")
    with pytest.raises(SimNetsError, match="root: the disk is full; free some space and fetch cifar10 again"):
        fetch("cifar10", root)
    assert not (root / "cifar-10-batches-bin").exists()


def test_a_disk_that_fills_while_unpacking(
    server: Server, tiny_cifar10: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(SimNetsError, match="the disk is full"):
            fetch("cifar10", tmp_path / "root")
    assert [p.name for p in (tmp_path / "root").iterdir()] == ["cifar-10-binary.tar.gz"]
    server.ranges.clear()
    fetch("cifar10", tmp_path / "root")
    assert server.ranges == []  # the archive had come whole


def test_unknown_names_and_unwritable_roots(server: Server, tiny_cifar10: Path, tmp_path: Path) -> None:
    with pytest.raises(SimNetsError, match="cannot fetch 'mnist'; the names are cifar10, cifar100, svhn"):
        fetch("mnist", tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SimNetsError, match="file: cannot be read or written"):
        fetch("cifar10", tmp_path / "file")


# unpacking


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for info, content in members:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    ("member", "match"),
    [
        (info("/etc/evil"), "outside its folder"),
        (info("../evil"), "outside its folder"),
        (info("a/../../evil"), "outside its folder"),
        (info("..\\evil"), "outside its folder"),
        (info("C:evil"), "outside its folder"),
        (info("link", tarfile.SYMTYPE, "/etc"), "a link or device"),
        (info("link", tarfile.LNKTYPE, "good"), "a link or device"),
        (info("pipe", tarfile.FIFOTYPE), "a link or device"),
        (info("device", tarfile.CHRTYPE), "a link or device"),
        (info("good"), "twice"),
    ],
)
def test_unsafe_members_are_refused(tmp_path: Path, member: tarfile.TarInfo, match: str) -> None:
    inside = tmp_path / "in" / "side"
    inside.mkdir(parents=True)
    archive = tar_of(tmp_path / "x.tar.gz", (info("good"), b"good"), (member, b""))
    with pytest.raises(SimNetsError, match=f"x.tar.gz: holds .*{match}.*; not unpacked"):
        extract(archive, inside, 1000)
    assert [p.name for p in tmp_path.rglob("*") if p.name != "x.tar.gz"] == ["in", "side", "good"]


def test_unpacked_size_is_bounded(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "x.tar.gz", (info("a"), bytes(600)), (info("b"), bytes(600)))
    with pytest.raises(SimNetsError, match="unpacks to more than 1,000 bytes"):
        extract(archive, tmp_path, 1000)
    assert not (tmp_path / "b").exists()


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).bytes(100_000)
    archive = tar_of(tmp_path / "x.tar.gz", (info("a"), noise))
    whole = archive.read_bytes()
    for number, content in enumerate([whole[:50_000], whole[:5], b"plain", b""]):
        archive.write_bytes(content)
        (tmp_path / str(number)).mkdir()
        with pytest.raises(SimNetsError, match=r"x.tar.gz: is not a readable .tar.gz"):
            extract(archive, tmp_path / str(number), 1_000_000)
