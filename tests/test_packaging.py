"""The package list is kept by hand: what is in the source tree is in the wheel."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_package_of_the_tree_is_listed():
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    source = ROOT / "src"
    found = {".".join(path.parent.relative_to(source).parts) for path in source.rglob("__init__.py")}
    assert listed == found | {"statewise.conf"}


def test_the_wheel_holds_the_modules_the_configuration_and_the_data(tmp_path):
    project = tmp_path / "project"  # a copy: building leaves files behind
    for name in ("src", "conf"):
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    inside = set(zipfile.ZipFile(wheel).namelist())
    source = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "statewise").rglob("*") if _belongs(path)}
    conf = {f"statewise/conf/{path.relative_to(ROOT / 'conf')}" for path in (ROOT / "conf").rglob("*.yaml")}
    assert source | conf <= inside


def _belongs(path: Path) -> bool:
    return path.is_file() and "__pycache__" not in path.parts
