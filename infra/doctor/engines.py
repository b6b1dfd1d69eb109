"""The engines: each of PARLEY_ENGINES is asked for a token, which is the only proof of life that Triton gives."""

from __future__ import annotations

import asyncio

from inference_workers.engine.client import EngineClient
from inference_workers.engine.errors import EngineError
from infra.doctor.findings import Finding, fail, ok, warn
from parley.settings import Settings
from parley.topics import Pool


async def engines(settings: Settings) -> list[Finding]:
    """Every engine of every pool."""
    asked = []
    findings = []
    for pool in settings.topics.pools.values():
        given = settings.engines.get(pool.name, ())
        addresses = (given,) if isinstance(given, str) else tuple(given)
        if not addresses:
            todo = f'where its workers run, set PARLEY_ENGINES={{"{pool.name}": "host:port"}}'
            findings.append(warn("engines", f"pool {pool.name}: no address is set here", todo))
        asked += [_engine(settings, pool, address) for address in addresses]
    for unknown in sorted(settings.engines.keys() - settings.topics.pools.keys()):
        findings.append(warn("engines", f"{unknown} is no pool of topics.yaml", "mend PARLEY_ENGINES or topics.yaml"))
    return findings + list(await asyncio.gather(*asked))


async def _engine(settings: Settings, pool: Pool, address: str) -> Finding:
    client = EngineClient(address, pool.engine_model, cumulative=pool.output == "cumulative")
    where = f"pool {pool.name} at {address}"
    try:
        took = await client.probe(timeout_s=settings.worker.probe_limit_s)
    except EngineError as error:
        todo = f"start it again, and look at its log: does it serve the model {pool.engine_model!r}?"
        return fail("engines", f"{where}: {error}", todo)
    finally:
        await client.close()
    return ok("engines", f"{where}: a token in {1000 * took:.0f} ms")
