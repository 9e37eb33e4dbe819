"""A device installs without the extra ``sim``: ray, matplotlib and mlxtend must not be needed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]

BLOCKER = """
import sys


class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

sys.meta_path.insert(0, Blocker())
"""

LOADED = """
import sys

print(*{name.split(".")[1] for name in sys.modules if name.startswith("fedpart.")})
"""


def run(blocked: set[str], code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"BLOCKED = {blocked!r}\n{BLOCKER}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_apps_import_without_the_packages_of_the_simulation():
    out = run(
        {"ray", "matplotlib", "mlxtend"},
        "import clients.app, clients.entry, strategies.app\n"
        "from flwr.clientapp import ClientApp\n"
        "from flwr.serverapp import ServerApp\n"
        "assert isinstance(clients.entry.app, ClientApp)\n"
        "assert isinstance(strategies.app.app, ServerApp)\n"
        "print('imported')",
    )
    assert out.strip() == "imported"


def test_the_blocker_blocks():
    out = run(
        {"mlxtend"},
        "try:\n    import mlxtend\nexcept ModuleNotFoundError:\n    print('blocked')",
    )
    assert out.strip() == "blocked"


def test_settings_and_records_need_no_torch():
    run({"torch", "flwr", "ray"}, "import fedpart.config, fedpart.errors, fedpart.records")


def test_tables_and_comparisons_need_no_torch():
    modules = "fedpart.compare, fedpart.results, fedpart.results_text, fedpart.seeds"
    run({"torch", "flwr", "ray"}, f"import {modules}")


def test_a_node_says_who_it_is_without_torch():
    run({"torch", "torchvision", "ray"}, "import clients.entry")


def test_the_likelihood_and_its_gradients_know_no_runs_reports_data_or_settings():
    out = run({"flwr", "ray", "pydantic", "matplotlib"}, "import fedpart.gradients\n" + LOADED)
    method = "augment errors gradients layout likelihood models plugins psi"
    assert set(out.split()) == set(f"{method} streams warp".split())
