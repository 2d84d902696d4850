"""A job's process: it ends with all that it started, says how, and cannot outlive its sweep."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from statewise.sweeps.job import SWEEP_PROCESS, Job
from statewise.sweeps.processes import Process


def job(folder: Path, script: str, **environment: str) -> Job:
    return Job(0, [], folder, [sys.executable, "-c", script], environment)


def wait(process: Process, seconds: float = 20.0) -> int | None:
    end = time.monotonic() + seconds
    while not process.has_ended() and time.monotonic() < end:
        time.sleep(0.01)
    return process.code


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def alive(number: int) -> bool:
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("raise ValueError", 1),
    ],
)
def test_the_code_says_how_it_ended(script, code, tmp_path):
    process = Process(job(tmp_path, script))
    assert wait(process) == code
    assert process.has_ended()


def test_all_that_a_job_says_is_in_its_log_in_the_order_said(tmp_path):
    wait(Process(job(tmp_path, "import sys; print('one'); print('two', file=sys.stderr); print('three')")))
    assert (tmp_path / "job.log").read_text() == "one\ntwo\nthree\n"


def test_the_environment_of_the_job_comes_on_top(tmp_path):
    script = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], 'PATH' in os.environ)"
    wait(Process(job(tmp_path, script, CUDA_VISIBLE_DEVICES="3")))
    assert (tmp_path / "job.log").read_text() == "3 True\n"


CHILD = (
    "import subprocess, sys, time; "
    "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True)"
)


@pytest.mark.parametrize("end", ["; import os; os._exit(0)", "; time.sleep(600)"])
def test_what_a_job_has_started_ends_with_it(end, tmp_path):
    process = Process(job(tmp_path, CHILD + end))
    assert until(lambda: (tmp_path / "job.log").read_text().endswith("\n"))
    child = int((tmp_path / "job.log").read_text())
    if "sleep" in end:
        process.kill()
    assert wait(process) == (0 if "_exit" in end else -9)
    assert until(lambda: not alive(child))


def test_a_job_that_is_asked_to_end_may_do_so_in_its_own_way(tmp_path):
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(143)))\n"
        "print('ready', flush=True)\ntime.sleep(600)"
    )
    process = Process(job(tmp_path, script))
    assert until(lambda: "ready" in (tmp_path / "job.log").read_text())
    process.ask_to_end()
    assert wait(process) == 143
    assert "saved" in (tmp_path / "job.log").read_text()


def test_a_job_that_does_not_end_when_asked_to_is_ended_by_force(tmp_path):
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(600)"
    process = Process(job(tmp_path, script))
    assert until(lambda: "ready" in (tmp_path / "job.log").read_text())
    process.ask_to_end(patience=0.05)
    assert wait(process) == -9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a job hears of its parent's death on Linux only")
def test_a_job_ends_when_its_sweep_is_killed(tmp_path):
    """The sweep is a process of its own here, which starts a job and is then killed."""
    (tmp_path / "job").mkdir()
    sleeper = (
        "from statewise.sweeps.processes import end_with_the_sweep; end_with_the_sweep()\n"
        "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    )
    sweep = (
        "import sys, time; from pathlib import Path\n"
        "from statewise.sweeps.processes import Process; from statewise.sweeps.job import Job\n"
        f"Process(Job(0, [], Path({str(tmp_path / 'job')!r}), [sys.executable, '-c', {sleeper!r}], {{}})); time.sleep(600)"
    )
    watcher = subprocess.Popen([sys.executable, "-c", sweep])
    log = tmp_path / "job" / "job.log"
    try:
        assert until(lambda: log.is_file() and log.read_text().endswith("\n"), 60)
    finally:
        watcher.kill()
        watcher.wait()
    assert until(lambda: not alive(int(log.read_text())))


def test_a_job_whose_sweep_is_gone_already_ends_at_once(tmp_path):
    script = "from statewise.sweeps.processes import end_with_the_sweep; end_with_the_sweep(); print('went on')"
    environment = {**os.environ, SWEEP_PROCESS: "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGTERM
    assert "went on" not in done.stdout
