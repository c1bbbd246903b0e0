"""Lists of images: how a word becomes names, and how names are kept."""

import hashlib
import os

import pytest

from modelscope_cli.errors import CannotRunError
from modelscope_cli.inputs.files import FileList, ListedImage, find_images

STRANGE = [
    "a b.png",
    "ümläut 図.png",
    os.fsdecode(b"\xff\xfe.png"),
    "tab\t.png",
    "line\nbreak.png",
    "'q\".png",
]


def names(*typed):
    return [file.name for file in find_images(map(str, typed)).files]


def test_a_list_gives_back_what_was_put_in():
    given = ListedImage("-", b"bytes")
    files = [*map(ListedImage, STRANGE), given, ListedImage("after.png"), ListedImage("after.png")]
    kept = FileList(iter(files))
    assert list(kept) == files
    assert kept[-1] == kept[len(files) - 1] == files[-1]
    assert kept[2:5] == files[2:5]
    assert kept.has_given
    assert not FileList(files[:2]).has_given
    assert len(FileList(())) == 0
    with pytest.raises(IndexError):
        kept[len(files)]


def test_the_hash_is_of_names_and_sizes_in_their_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, size in (("a.png", 3), ("b.png", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    files = [ListedImage("a.png"), ListedImage("b.png")]
    expected = hashlib.sha256(b"a.png\x003\nb.png\x0010\n").hexdigest()
    assert FileList(files).sha256() == expected
    assert FileList(reversed(files)).sha256() != expected
    (tmp_path / "a.png").write_bytes(b"xxxx")
    assert FileList(files).sha256() != expected


@pytest.mark.parametrize("word", ["folder", "folder/*", "@list.txt", "data"])
def test_strange_names_survive(tmp_path, monkeypatch, word):
    monkeypatch.chdir(tmp_path)
    above = "data/class" if word == "data" else "folder"
    os.makedirs(above)
    listed = [name for name in STRANGE if word != "@list.txt" or "\n" not in name]
    paths = [os.path.join(above, name) for name in listed]
    for path in paths:
        open(path, "wb").close()
    with open("list.txt", "wb") as file:
        file.writelines(os.fsencode(path) + b"\n" for path in paths)
    assert names(word) == (paths if word == "@list.txt" else sorted(paths, key=os.fsencode))


def test_the_order_is_that_of_bytes_in_every_class_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = ["d/B/1.png", "d/a-1/1.png", "d/a/10.JPEG", "d/a/9.png", "d/ä/1.png"]
    for path in paths:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "wb").close()
    assert names("d") == sorted(paths, key=os.fsencode)


def test_folders_inside_class_folders_are_searched_as_torchvision_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = ["d/a/1.png", "d/a/more/2.png", "d/a/more/still/3.png", "d/b/deep/4.png", "d/b/deep/5.jpg"]
    for path in [*paths, "d/a/.hidden/6.png"]:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "wb").close()
    os.symlink("../..", "d/a/more/loop")  # leads to itself
    found = find_images(["d"])
    assert [file.name for file in found.files] == paths
    assert found.notes == ["d: 5 images in 2 subfolders, 4 of them in folders inside"]
    assert [found.files.class_of(path) for path in paths] == ["a", "a", "a", "b", "b"]
    assert [find_images(["d/a/"]).files.class_of(path) for path in paths[:1]] == ["a"]
    assert find_images(["d/a"]).notes == [
        "d/a: the images in its subfolders are left out, as it has images of its own"
    ]


def test_data_sets_in_a_folder_are_not_taken_for_classes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("d/train/a/1.png", "d/val/a/2.png"):
        os.makedirs(os.path.dirname(path))
        open(path, "wb").close()
    with pytest.raises(CannotRunError, match="'d' contains no image"):
        names("d")


def test_a_list_keeps_its_order_its_duplicates_and_forgives_windows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in "ab":
        open(f"{name}.png", "wb").close()
    (tmp_path / "list.txt").write_bytes(b"\xef\xbb\xbfb.png\r\n\r\na.png\r\nb.png")
    assert names("@list.txt", "a.png") == ["b.png", "a.png", "b.png", "a.png"]


@pytest.mark.parametrize(("content", "message", "hint"), [
    (None, "list of images 'list.txt' does not exist", "ls ."),
    ("", "list of images 'list.txt' is empty", "one path per line"),
    ("\n \n", "list of images 'list.txt' is empty", "one path per line"),
    ("here.png\ngone.png\n", "line 2 of 'list.txt': 'gone.png' does not exist", ""),
    ("folder\n", "line 1 of 'list.txt': 'folder' is a folder", "find folder -name"),
])  # fmt: skip
def test_lists_that_cannot_be_used(tmp_path, monkeypatch, content, message, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "here.png").touch()
    if content is not None:
        (tmp_path / "list.txt").write_text(content)
    with pytest.raises(CannotRunError) as caught:
        names("@list.txt")
    assert message in caught.value.message
    assert hint in caught.value.hint
