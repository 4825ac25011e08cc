"""The table of what was kept."""

from dataclasses import replace

from nncsl.report.collect import RunRecord
from nncsl.report.ledger import ledger


def test_a_row_per_task_and_a_column_per_part(tmp_path):
    kept = ({"memory": 1280, "total": 1280}, {"memory": 2560, "bank": 1_400_000, "total": 1_402_560})
    nothing = dict.fromkeys(("seconds", "images_per_second", "summary", "command"))
    columns = dict.fromkeys(("tasks", "labeled", "unlabeled", "left_out", "epochs", "matrix", "seen"), ())
    record = RunRecord(tmp_path, config={}, **columns, **nothing, memory={}, kept=kept)
    made = ledger(record)
    assert made.count("<tr>") == 3 and made.count("<th ") == 4
    assert made.index(">replayed images<") < made.index(">feature bank<") < made.index(">total<")
    assert 'data-value="0"' in made and "1.4 MB" in made and "2.56 kB" in made
    assert ledger(replace(record, kept=())) == ""
