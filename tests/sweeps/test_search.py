"""A search by Optuna: every trial a job, what is learned kept in the sweep's folder, what fails recorded with its reason."""

import builtins
import warnings

import pytest

pytestmark = [
    pytest.mark.usefixtures("fake_jobs"),
    # Optuna 2.10 and SQLAlchemy 1.4 as they are.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SEARCH = "sweep=optuna_small"


@pytest.fixture
def study():
    """The trials that the study of a sweep's folder holds."""

    def trials(folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna
        return optuna.load_study(study_name="statewise", storage=f"sqlite:///{folder / 'study.db'}").trials

    return trials


def test_every_trial_is_a_job_and_the_study_knows_its_value(sweep, study):
    swept = sweep(SEARCH, "sweep.n_trials=3")
    assert swept.code == 0, swept.err
    trials = study(swept.folder)
    assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
    for trial, record in zip(trials, swept.records.values(), strict=True):
        assert trial.value == record["objective"]
        assert 1e-4 <= trial.params["optimizer.lr"] <= 1e-2
        assert trial.params["model.d_state"] in (8, 16, 32, 64)
        assert f"optimizer.lr={trial.params['optimizer.lr']}" in record["overrides"]
        assert trial.user_attrs["job"] == record["number"]


def test_the_sampler_has_a_seed(sweep, study, tmp_path):
    first = [trial.params for trial in study(sweep(SEARCH, "sweep.n_trials=2").folder)]
    again = sweep(SEARCH, "sweep.n_trials=2", f"hydra.sweep.dir={tmp_path / 'again'}")
    assert again.code == 0
    assert [trial.params for trial in study(tmp_path / "again")] == first
    other = sweep(SEARCH, "sweep.n_trials=2", "sweep.sampler.seed=7", f"hydra.sweep.dir={tmp_path / 'other'}")
    assert other.code == 0
    assert [trial.params for trial in study(tmp_path / "other")] != first


def test_a_trial_that_fails_or_diverges_is_recorded_with_its_reason_and_the_search_goes_on(sweep, study):
    swept = sweep(SEARCH, "sweep.n_trials=4", "seed=choice(1,101,160)", "launcher.n_jobs=2")
    assert len(swept.records) == 4
    assert swept.code == 1
    for trial, record in zip(study(swept.folder), swept.records.values(), strict=True):
        if record["status"] == "ok":
            assert trial.state.name == "COMPLETE"
        else:
            assert (trial.state.name, trial.value) == ("FAIL", None)
            assert trial.user_attrs["reason"] == f"{record['status']}: {record['message']}"
    assert len(set(swept.statuses)) > 1  # the sampler, which has a seed, proposed both kinds


def test_a_search_in_which_every_trial_fails_ends_with_its_table(sweep):
    swept = sweep(SEARCH, "sweep.n_trials=2", "seed=101")
    assert swept.code == 1
    assert swept.statuses == ["diverged", "diverged"]
    assert "2 jobs did not end ok" in swept.err


def test_a_search_goes_on_in_the_same_study_with_new_numbers_and_new_proposals(sweep, study):
    first = sweep(SEARCH, "sweep.n_trials=2")
    again = sweep(f"sweep.resume={first.folder}", "sweep.n_trials=4")
    assert again.code == 0, again.err
    assert "2 jobs done before, 2 jobs to do" in again.out
    assert sorted(again.records) == [0, 1, 2, 3]
    proposed = [trial.params["optimizer.lr"] for trial in study(first.folder)]
    assert len(set(proposed)) == 4


def test_a_search_that_has_all_its_trials_says_how_to_get_more(sweep):
    first = sweep(SEARCH, "sweep.n_trials=1")
    again = sweep(f"sweep.resume={first.folder}")
    assert again.code == 0
    assert "the study has its 1 trials; more with sweep.n_trials=NUMBER" in again.out + again.err


def test_trials_of_a_search_that_was_killed_count_where_their_jobs_ended_well(sweep, study):
    """As kill -9 leaves a study: trials that run for ever. The job of one of them has ended well all the same."""
    first = sweep(SEARCH, "sweep.n_trials=2")
    import optuna

    storage = f"sqlite:///{first.folder / 'study.db'}"
    lost = optuna.load_study(study_name="statewise", storage=storage)
    for job in (1, 77):
        lost.ask({"optimizer.lr": optuna.distributions.LogUniformDistribution(1e-4, 1e-2)}).set_user_attr("job", job)
    again = sweep(f"sweep.resume={first.folder}", "sweep.n_trials=3")
    assert again.code == 0, again.err
    assert [trial.state.name for trial in study(first.folder)] == ["COMPLETE", "COMPLETE", "COMPLETE", "FAIL"]
    assert "3 jobs done before, 0 jobs to do" in again.out


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optimizer.lr=1e-3", "model.d_state=8"], "sweep: there is nothing to search"),
        (["model=gru"], "there is no configuration key 'model.d_state'"),
        (["sweep.n_trial=3"], "there is no configuration key 'sweep.n_trial'; did you mean sweep.n_trials"),
        (["sweep.also=[]"], "there is no configuration key 'sweep.also'"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_in_one_line(overrides, said, sweep):
    swept = sweep(SEARCH, *overrides)
    assert swept.code == 2
    assert said in swept.err
    assert len(swept.err.strip().splitlines()) == 1


def test_a_search_without_optuna_says_what_to_install(sweep, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **keywords):
        if name.startswith("hydra_plugins.hydra_optuna_sweeper"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", without)
    swept = sweep(SEARCH)
    assert swept.code == 2
    assert "is not installed; a search needs pip install 'statewise[sweeps]'" in swept.err
    assert len(swept.err.strip().splitlines()) == 1
