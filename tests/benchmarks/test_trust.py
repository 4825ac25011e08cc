"""Short versions of the campaigns: kills, damage, power cuts; links and owners are in tests/nncsl/record."""

import json
import subprocess
import sys

import pytest

from nncsl.benchmarks.bank_power import Operation, Volume

SHORT = """
import json, random, sys
from collections import Counter
from pathlib import Path
from nncsl.benchmarks import damage, forked, kills, power

folder = Path(sys.argv[1])
forked.get_ready()
for name in ("damage", "power", "kills"):
    (folder / name).mkdir()
found = {"power": dict(power.campaign(folder / "power", orders=1, resumed=2, seed=1, every=7))}
damage.prepare(folder / "damage")
found["damage"] = dict(Counter(case[3] for case in damage.campaign(folder / "damage", each=1, seed=1)))
campaign = kills.Campaign(kills.cases()["nncsl"], folder / "kills", random.Random(1))
campaign.play(4)
found["kills"] = campaign.counts
print("found", json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and looks into /proc")
def test_kills_damage_and_power_cuts(tmp_path):
    ended = subprocess.run([sys.executable, "-c", SHORT, str(tmp_path)], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.split("found ")[-1])
    assert set(found["power"]) == {"intact", "resumed, the same"} and found["power"]["intact"] > 60
    assert set(found["damage"]) == {"noticed", "harmless"} and found["damage"]["noticed"] > 60
    assert found["kills"]["SIGKILL"] + found["kills"]["SIGTERM"] >= 4


def test_a_folder_that_was_not_synced_takes_its_files_with_it():
    made = [Operation("make_directory", "run"), Operation("create", "run/a.tmp"), Operation("sync", "run/a.tmp")]
    named = [*made, Operation("replace", "run/a.tmp", "run/a"), Operation("sync_directory", "run")]
    assert Volume(named).as_seen() == {"run/a": b""}
    assert Volume(named).after_power_loss(None) == {}
    assert Volume([*named, Operation("sync_directory", ".")]).after_power_loss(None) == {"run/a": b""}
