"""idemkit as one of the clients of compare.py, which says what is asked and answered on each line:

    client_idemkit.py URL
    client_idemkit.py --versions

The table is made before, by `idemkit init-pg`.
"""
import asyncio
import json
import resource
import sys
import time
import warnings

if sys.argv[1] == "--versions":
    import importlib.metadata
    import platform

    libraries = {name: importlib.metadata.version(name) for name in ("idemkit", "asyncpg")}
    print(json.dumps({"Python": platform.python_version(), **libraries}))
    sys.exit()

from idemkit import IdempotencyConflict, MethodConfig, PostgresBackend, idempotent  # noqa: E402

warnings.simplefilter("ignore", UserWarning)  # That there is one tenant only.
RECEIPT = "r" * 100
runs = 0


def cpu_us():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return (usage.ru_utime + usage.ru_stime) * 1e6


async def answer(command, backend):
    times = {}
    if command["do"] == "work":
        # A call that waits takes no lapsed claim over: the next one does.
        times = {"lease_ttl_seconds": command["lease_ms"] / 1000, "wait_timeout_seconds": command["lease_ms"] / 1000}

    @idempotent(backend=backend, config=MethodConfig(key_fields=["order"]))
    async def cycle(*, order):
        global runs
        runs += 1
        return RECEIPT

    @idempotent(backend=backend, config=MethodConfig(key_fields=["order"], **times))
    async def work(*, order):
        global runs
        runs += 1
        with open(command["effects"], "a") as effects:
            effects.write(f"{order - command['first']}\n")
        await asyncio.sleep(command["work_ms"] / 1000)
        return RECEIPT

    call = work if command["do"] == "work" else cycle
    left = iter(range(command["first"], command["first"] + command["count"]))  # Shared by all.
    wrong = 0

    async def worker():
        nonlocal wrong
        for order in left:
            until = time.monotonic() + command.get("limit_ms", 0) / 1000
            while True:
                try:
                    wrong += await call(order=order) != RECEIPT
                    break
                except IdempotencyConflict:  # "Retry with bounded backoff."
                    if time.monotonic() > until:
                        wrong += 1
                        break

    await asyncio.gather(*(worker() for _ in range(command["in_flight"])))
    return wrong


async def main():
    global runs
    backends = {}
    read = asyncio.get_running_loop().run_in_executor
    while line := await read(None, sys.stdin.readline):
        command = json.loads(line)
        in_flight = command["in_flight"]
        if in_flight not in backends:  # A connection for each call, as pgbench has.
            backends[in_flight] = PostgresBackend.from_url(sys.argv[1], min_size=min(4, in_flight), max_size=max(in_flight, 2))
        runs = 0
        cpu, began = cpu_us(), time.perf_counter()
        wrong = await answer(command, backends[in_flight])
        seconds, spent = time.perf_counter() - began, cpu_us() - cpu
        print(json.dumps({"seconds": seconds, "cpu_us": spent, "runs": runs, "wrong": wrong}), flush=True)
    for backend in backends.values():
        await backend.aclose()


asyncio.run(main())
