"""Every combination and the further jobs, each once; started again only what is missing or failed."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from statewise.sweeps.grid import further_job, product

pytestmark = pytest.mark.usefixtures("fake_jobs")


def parsed(*overrides):
    return OverridesParser.create().parse_overrides(list(overrides))


def test_the_product_is_in_the_order_typed():
    assert product(parsed("a=1,2", "b=x", "c=3,4")) == [
        ["a=1", "b=x", "c=3"], ["a=1", "b=x", "c=4"], ["a=2", "b=x", "c=3"], ["a=2", "b=x", "c=4"],
    ]  # fmt: skip


def test_what_is_not_swept_over_stays_as_it_was_typed():
    typed = ["a='x, y'", "b=[1,2]", "~c", "+d={e:1}", "f=glob(*)"]
    assert product(parsed(*typed[:4])) == [typed[:4]]


def test_the_last_override_of_a_key_counts():
    assert product(parsed("a=1,2", "a=3")) == [["a=3"]]


def test_an_interval_is_no_list():
    with pytest.raises(ValueError, match=r"a=interval\(0,1\): an interval cannot be listed; search it with sweep=optuna_small"):
        product(parsed("a=interval(0,1)"))


def test_a_further_job_has_what_is_common_to_all_and_its_own():
    assert further_job(parsed("a=1,2", "b=x", "c=3"), parsed("c=4", "d=5")) == ["b=x", "c=4", "d=5"]


def test_further_jobs_come_after_the_product(sweep):
    swept = sweep("seed=1,2", 'sweep.also=["seed=3 optimizer.lr=1e-2","seed=1"]')
    assert swept.seeds == ["seed=1", "seed=2", "seed=3"]  # seed=1 is there already
    assert "optimizer.lr=1e-2" in swept.records[2]["overrides"]
    assert not any(entry.startswith("sweep.") for record in swept.records.values() for entry in record["overrides"])


@pytest.mark.parametrize(
    ("also", "said"),
    [
        ('["seed=1,2"]', "sweep.also: 'seed=1,2' is not one job's overrides: seed=1,2 is more than one value"),
        ('[""]', "it is empty"),
        ('["seed=\'1"]', "No closing quotation"),
        ('["nonsense"]', "sweep.also: 'nonsense' is not one job's overrides"),
    ],
)
def test_a_further_job_that_is_none_is_refused(also, said, sweep):
    swept = sweep("seed=1", f"sweep.also={also}")
    assert swept.code == 2
    assert said in swept.err
    assert len(swept.err.strip().splitlines()) == 1


def test_started_again_a_sweep_runs_only_what_failed_and_keeps_what_the_failed_ones_left(sweep):
    first = sweep("seed=1,101,2", "sweep.also=['seed=107']")
    assert first.statuses == ["ok", "diverged", "ok", "failed"]
    before = (first.folder / "1" / "job.json").read_bytes()
    again = sweep(f"sweep.resume={first.folder}")
    assert again.code == 1
    assert sorted(again.records) == [0, 1, 2, 3, 4, 5]
    assert [again.records[number]["overrides"][-1] for number in (4, 5)] == ["seed=101", "seed=107"]
    assert (first.folder / "1" / "job.json").read_bytes() == before
    assert "2 jobs done before, 2 jobs to do" in again.out
    table = again.out[again.out.index("job   overrides") :]
    assert [line.lstrip("★ ").split()[0] for line in table.splitlines()[2:6]] == ["0", "2", "4", "5"]


def test_started_again_with_more_values_only_the_new_ones_run(sweep):
    first = sweep("seed=1,2")
    again = sweep(f"sweep.resume={first.folder}", "seed=1,2,3")
    assert (again.code, again.seeds) == (0, ["seed=1", "seed=2", "seed=3"])


def test_the_order_of_the_overrides_makes_no_other_job(sweep):
    first = sweep("seed=1", "optimizer.lr=0.1,0.2")
    again = sweep(f"sweep.resume={first.folder}", "optimizer.lr=0.1,0.2", "seed=1", "launcher.n_jobs=2")
    assert again.code == 0
    assert "2 jobs done before, 0 jobs to do" in again.out
    assert len(again.records) == 2


def test_of_a_sweep_that_was_killed_what_is_missing_is_done(sweep):
    """As kill -9 leaves it: a job without an end, and others that never began."""
    first = sweep("seed=1,2,3")
    (first.folder / "2" / "job.json").unlink()
    (first.folder / "2" / "summary.json").unlink()
    record = first.folder / "1" / "job.json"
    record.write_text(record.read_text().replace('"status": "ok"', '"status": "running"'))
    (first.folder / "1" / "summary.json").unlink()
    again = sweep(f"sweep.resume={first.folder}")
    assert again.code == 0
    assert [again.records[number]["overrides"][-1] for number in (3, 4)] == ["seed=2", "seed=3"]


def test_without_the_option_a_folder_of_a_sweep_is_gone_on_with_all_the_same(train, sweep):
    first = sweep("seed=1,2")
    outcome = train(f"sweep.resume={first.folder}", tiny=False)  # nothing else can be meant
    assert outcome.code == 0
    assert "2 jobs done before" in outcome.out


@pytest.mark.parametrize(("place", "said"), [("nowhere", "does not exist"), (".", "holds no sweep: it has no multirun.yaml")])
def test_a_folder_that_is_no_sweep_is_refused(place, said, sweep):
    swept = sweep(f"sweep.resume={place}")
    assert swept.code == 2
    assert said in swept.err
    assert len(swept.err.strip().splitlines()) == 1


def test_two_commands_do_not_work_on_the_same_sweep_at_once(sweep):
    from statewise.sweeps.sweep import Sweep

    first = sweep("seed=101")
    other = Sweep(first.folder, "val/mse")  # as another process would have it
    refused = sweep(f"sweep.resume={first.folder}")
    assert refused.code == 2
    assert "another process works on this sweep" in refused.err
    other.close()
    assert sweep(f"sweep.resume={first.folder}").code == 1
