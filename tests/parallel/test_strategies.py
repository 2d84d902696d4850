from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment

from statewise.parallel.company import has_company, of_one_run, several
from statewise.parallel.followers import Call, Followers
from statewise.parallel.started_at_once import started_at_once
from statewise.parallel.strategies import DataParallel, refuse_processes, strategy_of
from statewise.schemas import Hardware


@pytest.mark.parametrize(
    ("hardware", "expected"),
    [
        (Hardware(), False),
        (Hardware(devices="1"), False),
        (Hardware(devices="auto"), False),
        (Hardware(devices=2), True),
        (Hardware(devices="2"), True),
        (Hardware(accelerator="gpu", devices="auto"), True),
        (Hardware(accelerator="gpu", devices=[3]), False),
        (Hardware(accelerator="gpu", devices=[0, 1]), True),
        (Hardware(num_nodes=2), True),
        (Hardware(strategy="ddp"), True),
    ],
)
def test_hardware_says_whether_there_may_be_several_processes(hardware: Hardware, expected: bool) -> None:
    assert several(hardware) is expected
    assert (strategy_of(hardware) != "auto") is expected


def test_a_wrong_strategy_is_refused_with_its_key() -> None:
    with pytest.raises(ValueError, match=r"^hardware\.strategy .*auto, ddp, fsdp.*'dpp'"):
        strategy_of(Hardware(strategy="dpp"))
    with pytest.raises(ValueError, match=r"^hardware\.num_nodes must be at least 1, got 0"):
        strategy_of(Hardware(num_nodes=0))


def test_a_strategy_waits_as_long_as_the_hardware_says_and_starts_our_processes() -> None:
    strategy: Any = strategy_of(Hardware(devices=2, timeout=7), Call("module:name", {}))
    assert isinstance(strategy, DataParallel)
    assert strategy._timeout.total_seconds() == 7
    assert strategy.process_group_backend == "gloo"
    strategy.cluster_environment, strategy.parallel_devices = LightningEnvironment(), [torch.device("cpu")] * 2
    strategy._configure_launcher()
    assert isinstance(strategy.launcher, Followers)
    assert strategy.launcher.call == Call("module:name", {})


def trainer(processes: int, nodes: int = 1, world: int | None = None, outside: bool = False) -> Any:
    cluster = SimpleNamespace(creates_processes_externally=outside)
    strategy = SimpleNamespace(num_processes=processes, num_nodes=nodes, cluster_environment=cluster)
    return SimpleNamespace(strategy=strategy, world_size=world or processes * nodes)


def test_processes_that_could_not_share_the_work_are_refused_in_one_line() -> None:
    refuse_processes(trainer(2), 2, 2)
    refuse_processes(trainer(4, nodes=2, outside=True), 8, None)
    with pytest.raises(
        ValueError, match=r"^hardware.num_nodes=2: start the same command on every node, .* with srun or torchrun"
    ):
        refuse_processes(trainer(4, nodes=2), 8, None)
    with pytest.raises(ValueError, match=r"^hardware asks for 4 processes and 1 were started: "):
        refuse_processes(trainer(4, world=1, outside=True), 8, None)
    with pytest.raises(ValueError, match=r"^data.batch_size=3 is that of all processes together, and there are 4"):
        refuse_processes(trainer(4), 3, None)
    with pytest.raises(ValueError, match=r"^data.sampling=contiguous has 3 streams here and hardware asks for 4 processes"):
        refuse_processes(trainer(4), 64, 3)


def test_a_batch_smaller_than_the_processes_is_refused_before_any_is_started(train: Any) -> None:
    refused = train("hardware=ddp_cpu", "data.batch_size=1")
    assert refused.code == 2
    assert refused.err == "data.batch_size=1 is that of all processes together, and there are 2: it must be at least that\n"


def test_several_nodes_need_somebody_who_starts_them(train: Any) -> None:
    refused = train("hardware=ddp_cpu", "hardware.num_nodes=2")
    assert refused.code == 2
    assert "hardware.num_nodes=2: start the same command on every node" in refused.err
    assert refused.err.count("\n") == 1


# -- started from outside -----------------------------------------------------------------------------------------------


SLURM = {
    "SLURM_NTASKS": "4", "SLURM_NTASKS_PER_NODE": "2", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
    "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1234567", "SLURM_JOB_NAME": "train", "SLURM_NODELIST": "gpu[07-08]",
}  # fmt: skip


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("MASTER_ADDR", "MASTER_PORT", *SLURM):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def put(values: dict[str, str]) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return put


def test_a_process_alone_has_no_company(environment: Any) -> None:
    assert not has_company()
    assert started_at_once() is None


def test_a_process_of_srun_knows_its_rank_and_where_the_first_one_is(environment: Any) -> None:
    environment(SLURM)
    assert has_company()
    start = started_at_once()
    assert start is not None
    assert (start.rank, start.address, start.shared) == (3, "gpu07", False)
    assert 25_000 <= start.port < 32_000


def test_a_batch_script_without_srun_has_no_company_of_its_own(environment: Any) -> None:
    environment({name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"})
    assert started_at_once() is None


def test_a_process_of_torchrun_uses_the_store_of_torchrun(environment: Any) -> None:
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "29401"}
    environment(torchrun | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    start = started_at_once()
    assert start is not None
    assert (start.rank, start.address, start.port, start.shared) == (1, "here", 29401, True)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["seed=3"], False),
        (["hardware=ddp_cpu", "seed=3"], True),
        (["hardware.devices=2"], True),
        (["hardware=nowhere"], False),
        (["-m", "hardware=ddp_cpu", "seed=0,1"], False),
    ],
)
def test_a_command_line_says_whether_its_processes_are_of_one_run(arguments: list[str], expected: bool) -> None:
    assert of_one_run(arguments) is expected


def test_the_own_configuration_of_a_user_may_say_it(tmp_path: Any) -> None:
    (tmp_path / "hardware").mkdir()
    (tmp_path / "hardware" / "mine.yaml").write_text("defaults: [/schema/hardware@_here_, _self_]\ndevices: 3\n")
    assert of_one_run(["--config-dir", str(tmp_path), "hardware=mine"])
    assert of_one_run([f"--config-dir={tmp_path}", "hardware=mine"])
