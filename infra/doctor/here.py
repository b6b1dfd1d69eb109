"""What this machine must have for the roles that it runs: keys, files, versions, space."""

from __future__ import annotations

import platform
import shutil
from binascii import Error as NotBase64
from importlib.metadata import version
from pathlib import Path

from infra.doctor.findings import Finding, fail, ok, warn
from parley import __version__
from parley.safety.classifier import Classifier, ModelUnusable
from parley.safety.policy import Policy, PolicyInvalid
from parley.settings import Settings
from parley.tokenizers import load_tokenizer
from schemas import export

KEY_BYTES = 32
"""Of a secret for ids: as many as the hash that it keys."""
LITTLE_SPACE = 2 << 30
"""Free bytes below which a disk is a failure to come; `parley up` starts nothing then."""


async def versions(settings: Settings) -> list[Finding]:
    """What runs here, for whoever is told of the rest."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("aiokafka", "psycopg", "scylla-driver", "pydantic"))
    return [ok("versions", f"parley {__version__}, Python {platform.python_version()}, {libraries}")]


async def id_keys(settings: Settings) -> list[Finding]:
    """The edges' secrets."""
    try:
        keys = settings.keys
    except NotBase64:
        return [fail("id keys", "PARLEY_ID_KEYS holds something that is no base64", "give base64 of 32 random bytes")]
    except ValueError:
        return [
            fail("id keys", "PARLEY_ID_KEYS is not set: no edge starts", "set it where edges run; all have the same")
        ]
    short = [str(number) for number, key in enumerate(keys, 1) if len(key) < KEY_BYTES]
    if short:
        found = f"secret {', '.join(short)} of {len(keys)} is shorter than {KEY_BYTES} bytes"
        return [warn("id keys", found, "put a longer one first; keep the old one behind it while its ids are in use")]
    return [ok("id keys", f"{len(keys)} set, the first is the current one")]


async def schemas(settings: Settings) -> list[Finding]:
    """The exported schemas are the code's."""
    if not export.FOLDER.is_dir():
        return [warn("schemas", f"{export.FOLDER} is not there", "install the package with its schemas folder")]
    if differing := export.differences():
        return [fail("schemas", f"schemas/json differs: {', '.join(differing)}", "run `python -m schemas.export`")]
    return [ok("schemas", f"{len(export.schemas())} events, as the code has them")]


async def tokenizers(settings: Settings) -> list[Finding]:
    """Each pool's tokenizer can be read."""
    findings = []
    for pool in settings.topics.pools.values():
        try:
            count = load_tokenizer(pool.tokenizer, settings.tokenizers_dir).count("Hello there")
        except FileNotFoundError as error:
            findings.append(
                fail("tokenizers", f"pool {pool.name}: {error}", "`make setup`, or set PARLEY_TOKENIZERS_DIR")
            )
        except Exception as error:  # the library raises bare Exceptions for files that it can't read
            where = settings.tokenizers_dir / f"{pool.tokenizer}.json"
            findings.append(
                fail("tokenizers", f"pool {pool.name}: {where}: {error}", "delete the file, then `make setup`")
            )
        else:
            findings.append(ok("tokenizers", f"pool {pool.name}: {pool.tokenizer} counts {count} tokens in two words"))
    return findings


async def moderation(settings: Settings) -> list[Finding]:
    """The model and the policy can be read, and speak of the same categories."""
    try:
        classifier = Classifier.load(settings.moderation.model)
        policy = Policy.load(settings.moderation.policy)
        for stage in ("input", "output"):
            policy.limits(stage, classifier.categories)
    except ModelUnusable as error:
        return [fail("moderation", str(error), "put the model back, or set PARLEY_MODERATION__MODEL; no prompt passes")]
    except PolicyInvalid as error:
        return [fail("moderation", str(error), "mend the policy, or set PARLEY_MODERATION__POLICY; no prompt passes")]
    return [
        ok("moderation", f"model {classifier.version}, policy {policy.version}, {len(policy.categories)} categories")
    ]


async def disk(settings: Settings) -> list[Finding]:
    """Room where this machine's files are."""
    return [space("disk", path) for path in sorted({Path.cwd(), settings.moderation.model.parent.resolve()})]


def space(check: str, path: Path) -> Finding:
    """Free space in a folder."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        return warn(check, f"{path}: {error.strerror}", "look at the disk on the machine that has it")
    told = f"{free / (1 << 30):.1f} GiB free at {path}"
    if free < LITTLE_SPACE:
        return fail(check, told, "make room, as docs/runbooks/recover-disk-full.md says: a full disk stops the log")
    return ok(check, told)
