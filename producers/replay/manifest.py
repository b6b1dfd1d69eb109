"""What a replay or an export was made of: enough to go on with it, to repeat it, and to see that files are whole."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from parley.errors import ParleyError
from producers.replay.slices import Slice
from schemas.base import Millis

FILE = "manifest.json"

StageName = Literal["export", "moderation", "orchestrator", "worker"]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Input(_Value):
    """A file that a replay was given."""

    path: str
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Input:
        """A file as it is now.

        Raises:
            ParleyError: invalid_request: it can't be read.
        """
        try:
            return cls(path=str(path.resolve()), sha256=sha256(path))
        except OSError as error:
            raise ParleyError("invalid_request", f"cannot read {path}: {error.strerror or error}") from error

    def check(self) -> Path:
        """The file, which must not have changed.

        Raises:
            ParleyError: invalid_request.
        """
        if Input.of(Path(self.path)).sha256 != self.sha256:
            raise ParleyError("invalid_request", f"{self.path} has changed since the replay began: begin another")
        return Path(self.path)


class Output(_Value):
    """A file that was written, and what proves that it is whole."""

    name: str
    lines: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Output:
        """A file that has just been written."""
        return cls(name=path.name, lines=path.read_bytes().count(b"\n"), sha256=sha256(path))


class Manifest(_Value):
    """One export or replay."""

    id: str
    stage: StageName
    operator: str
    code: str
    """The version of Parley that ran."""
    began_at: Millis
    ended_at: Millis | None = None
    """None: it is not done; `parley replay resume` goes on."""
    slice: Slice
    rate: float = 1_000.0
    """Records a second at most."""
    inputs: dict[str, Input] = {}
    """What took the place of the live configuration: policy, model, topics."""
    options: dict[str, str] = {}
    """What else it was told."""
    archive: str | None = None
    """The folder that the past was read from; None: the brokers."""
    content: bool = False
    """What people wrote is in its files; that it was asked for is in chat.audit."""
    counts: dict[str, int] = {}
    """Records: in the slice, taken, passed over and why."""
    outputs: tuple[Output, ...] = ()

    @property
    def fingerprint(self) -> str:
        """Of what decides how it comes out, beside the slice: two that share a name must share this."""
        told = [self.stage, self.code, *sorted(f"{name} {given.sha256}" for name, given in self.inputs.items())]
        told += sorted(f"{name} {value}" for name, value in self.options.items())
        return hashlib.sha256("\n".join(told).encode()).hexdigest()[:16]

    def save(self, folder: Path) -> None:
        """Write it whole, or leave the one that was there. The folder, if it is new, is its owner's alone."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = folder / f".{FILE}"
        draft.write_text(self.model_dump_json(indent=2) + "\n")
        draft.replace(folder / FILE)

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """The manifest of a folder.

        Raises:
            ParleyError: not_found, invalid_request.
        """
        try:
            return cls.model_validate_json((folder / FILE).read_text())
        except OSError:
            raise ParleyError("not_found", f"{folder} holds no {FILE}: it is no folder of a replay") from None
        except ValidationError as error:
            raise ParleyError("invalid_request", f"{folder / FILE} can't be read: {error.errors()[0]['msg']}") from None


def sha256(path: Path) -> str:
    """Of a file's bytes, hex.

    Raises:
        OSError: it can't be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
