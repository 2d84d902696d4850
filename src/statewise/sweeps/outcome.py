"""What became of a job that ran in another process: from what it left in its folder and how that process ended."""

import json
import math
import signal
from pathlib import Path
from typing import Any

from statewise.runs import SUMMARY
from statewise.sweeps.job import last_line
from statewise.sweeps.job_record import JobRecord

TAIL = 20_000  # bytes of the log that may hold the last line
WHY = {
    signal.SIGKILL: "; nobody asked for it here, so the system may have run out of memory",
    signal.SIGSEGV: "; a crash inside a compiled library",
    signal.SIGBUS: "; a crash inside a compiled library, or a full disk behind shared memory",
    signal.SIGABRT: "; a compiled library gave up",
}


def outcome(
    *,
    number: int,
    overrides: list[str],
    folder: Path,
    log: Path,
    code: int | None,
    seconds: float,
    ended_by_us: str | None = None,
    gone: str = "ended without an exit code",
) -> JobRecord:
    """The record of a job that has ended.

    Args:
        folder: its run folder, that of the last attempt where there were several.
        log: what it said.
        code: the exit code of its process, negative for the number of a signal; None where nobody knows.
        ended_by_us: why the sweep ended it, where it did.
        gone: what is said where there is no exit code.
    """
    summary = _summary(folder)
    known = str((summary or {}).get("error") or "")
    status, message, exit_code, value = "failed", "", 1 if code is None else 128 - code if code < 0 else code, None
    if code == 0 and summary is not None and summary["status"] == "ok":
        value, message = objective_of(summary)
        status, exit_code = ("failed", 1) if value is None else ("ok", 0)
    elif ended_by_us is not None or code is None:
        go_on = f"; it goes on with resume={folder}" if _can_go_on(folder) else ""
        stopped = ended_by_us is not None or (summary is not None and summary["status"] == "interrupted")
        status, message = "interrupted" if stopped else "failed", f"{ended_by_us or gone}{go_on}"
    elif code < 0:
        message = f"killed by signal {-code} ({_name(-code)}){WHY.get(-code, '')}"  # type: ignore[call-overload]
    elif summary is not None and summary["status"] != "ok":
        status, message = summary["status"], known
    elif code == 0:
        message, exit_code = f"ended without a result: no {SUMMARY} in its folder", 1
    else:
        said, bare = _last_said(log), f"ended with exit code {code}"
        message = said if said and code in {1, 2} else f"{bare}; its last line: {said}" if said else bare
    return JobRecord(
        number=number,
        overrides=overrides,
        status=status,
        folder=folder,
        exit_code=exit_code,
        message=message,
        objective=value,
        seconds=seconds,
    )


def objective_of(summary: dict[str, Any]) -> tuple[float | None, str]:
    """The objective of a run that went well, or why there is none: a number that is not finite is no value."""
    found = summary.get("objective") or {}
    value = found.get("value")
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value), ""
    return None, no_objective(str(found.get("name")))


def no_objective(name: str) -> str:
    """What is said of a run that trained well and has no finite value of what the sweep minimises."""
    return f"objective={name} has no finite value in this run; its log names the metrics there are"


def _summary(folder: Path) -> dict[str, Any] | None:
    try:
        found = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "status" in found else None


def _can_go_on(folder: Path) -> bool:
    return any((folder / "checkpoints").glob("last*.ckpt"))


def _last_said(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            return last_line(file.read().decode("utf-8", "replace").splitlines())
    except OSError:
        return ""


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
