"""Images in tar archives, which are read in place."""

import io
import tarfile

import pytest
import torch

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.files import find_images


@pytest.fixture
def shard(make_picture, tmp_path, monkeypatch):
    """Write an archive of images, each beside its class, as WebDataset has them."""
    monkeypatch.chdir(tmp_path)

    def write(name, members, mode="w", **options):
        with tarfile.open(tmp_path / name, mode, **options) as archive:
            for member in members:
                content = make_picture("one.jpg", size=(40 + len(member), 30)).read_bytes()
                for path, data in ((member, content), (member.replace(".jpg", ".cls"), b"7")):
                    info = tarfile.TarInfo(path)
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        (tmp_path / "one.jpg").unlink(missing_ok=True)
        return tmp_path / name

    return write


MEMBERS = ["000.jpg", "cat/001.jpg", "./dog/2.jpg", "x" * 150 + ".jpg", "ünicode 図.jpg"]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_are_read_as_tarfile_reads_them(shard, opened, format):
    path = shard("s.tar", MEMBERS, format=format)
    found = find_images(["s.tar"])
    assert [file.name for file in found.files] == [f"s.tar/{name.removeprefix('./')}" for name in MEMBERS]
    assert found.notes == ["'s.tar': 5 images in 1 shard, 5 other files skipped"]
    with tarfile.open(path) as archive:
        assert [file.read() for file in found.files] == [archive.extractfile(n).read() for n in MEMBERS]
        for name in MEMBERS:
            with open(f"alone{MEMBERS.index(name)}.jpg", "wb") as file:
                file.write(archive.extractfile(name).read())
    (from_shard,) = opened("s.tar", size="24")
    (alone,) = opened(*(f"alone{n}.jpg" for n in range(5)), size="24")
    assert torch.equal(from_shard.args[0], alone.args[0])


def test_shards_are_sorted_and_one_image_is_called_as_in_a_result(shard, tmp_path):
    (tmp_path / "shards").mkdir()
    for name in ("b", "a"):
        shard(f"shards/{name}.tar", ["1.jpg", "0.jpg"])
    expected = [f"shards/{name}" for name in ("a.tar/1.jpg", "a.tar/0.jpg", "b.tar/1.jpg", "b.tar/0.jpg")]
    for word in ("shards", "shards/*.tar"):
        assert [file.name for file in find_images([word]).files] == expected
    assert list(find_images(["shards/b.tar/0.jpg"]).files) == [find_images(["shards"]).files[3]]
    with pytest.raises(CannotRunError, match=r"'shards/b\.tar/9\.jpg' does not exist"):
        find_images(["shards/b.tar/9.jpg"])


def test_an_empty_shard_among_others_is_passed_over_and_alone_refused(shard):
    shard("empty.tar", [])
    shard("full.tar", ["0.jpg"])
    assert len(find_images(["*.tar"]).files) == 1
    with pytest.raises(CannotRunError, match=r"'empty.tar' holds no image") as caught:
        find_images(["empty.tar"])
    assert caught.value.hint == "tar -tf empty.tar"


@pytest.mark.parametrize(("mode", "tool"), [("w:gz", "gunzip"), ("w:bz2", "bunzip2"), ("w:xz", "unxz")])
@pytest.mark.parametrize("name", ["s.tar", "s.tar.gz", "s.tgz"])
def test_compressed_shards_are_refused_by_their_content_and_name(shard, tmp_path, mode, tool, name):
    (tmp_path / "folder").mkdir()
    shard(f"folder/{name}", ["0.jpg"], mode)
    shard("folder/plain.tar", ["0.jpg"])
    for word in (f"folder/{name}", "folder"):
        with pytest.raises(CannotRunError, match=f"'folder/{name}' is a compressed archive") as caught:
            find_images([word])
        assert caught.value.hint == f"{tool} folder/{name}"


def test_what_is_not_an_archive(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content, what in ((b"", "is empty"), (b"words" * 300, "is not a tar archive")):
        (tmp_path / "s.tar").write_bytes(content)
        with pytest.raises(CannotRunError, match=f"'s.tar' {what}"):
            find_images(["s.tar"])


def test_links_and_devices_are_left_out(tmp_path, make_picture, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with tarfile.open("s.tar", "w") as archive:
        archive.add(make_picture("real.png"), "real.png")
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE):
            info = tarfile.TarInfo("link.png")
            info.type, info.linkname = kind, "/etc/passwd"
            archive.addfile(info)
    found = find_images(["s.tar"])
    assert [file.name for file in found.files] == ["s.tar/real.png"]
    assert found.notes == ["'s.tar': 1 image in 1 shard, 4 links skipped"]


@pytest.mark.parametrize("where", ["data", "header", "damage"])
def test_a_shard_that_is_cut_off_gives_what_can_be_reached_and_a_warning(shard, opened, where):
    path = shard("s.tar", [f"{n}.jpg" for n in range(6)])
    last = find_images(["s.tar"]).files[3].member
    content = path.read_bytes()
    if where == "damage":
        path.write_bytes(content[: last.start - 512] + b"\x07" * 512 + content[last.start :])
    else:
        path.write_bytes(content[: last.start + (20 if where == "data" else -300)])
    inputs = opened("s.tar", size="24")
    n_listed = 4 if where == "data" else 3
    (warning,) = inputs.warnings
    assert warning.message == f"'s.tar' is truncated or damaged: only its first {n_listed} images can be read"
    batches = list(inputs)
    assert sum(batch.n_images for batch in batches) == inputs.n_images == 3
    assert [one.kind for one in inputs.info.broken] == (["truncated"] if where == "data" else [])


def test_a_member_of_an_absurd_size_is_not_read(shard, monkeypatch, opened):
    shard("s.tar", ["0.jpg", "1.jpg"])
    size = find_images(["s.tar"]).files[1].member.size
    monkeypatch.setattr("modelscope_cli.inputs.image._MOST_BYTES", size - 1)
    with pytest.raises(CannotRunError, match=r"none of the 2 images can be read: 2 too large"):
        opened("s.tar", size="24")
