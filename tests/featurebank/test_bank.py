"""The public contract: create, open, write, commit, read, contains, evict, generations, refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from nncsl.featurebank import BankMismatch, FeatureBank, fingerprint
from tests.featurebank.support import DEVICES, EXACT_CODECS, dense_keys, error_bound, unit_rows

RESIDENCIES = [("ram", None), ("disk", None), *[("device", device) for device in DEVICES]]


def filled(path, images=50, slots=4, **options):
    ids, slot_numbers = dense_keys(images, slots)
    features = unit_rows(len(ids), 128)
    bank = FeatureBank.create(path, **options)
    bank.write(ids, slot_numbers, features)
    bank.commit()
    return bank, ids, slot_numbers, features


@pytest.mark.parametrize("codec", EXACT_CODECS)
@pytest.mark.parametrize(("residency", "device"), RESIDENCIES)
def test_reads_any_order_with_duplicates(tmp_path, codec, residency, device):
    bank, ids, slots, features = filled(tmp_path / "bank", codec=codec)
    bank.close()
    at = torch.randint(0, len(ids), (300,), generator=torch.Generator().manual_seed(1))
    with FeatureBank.open(tmp_path / "bank", residency=residency, device=device) as bank:
        got = bank.read(ids[at], slots[at])
        assert got.dtype == torch.float32 and got.shape == (300, 128)
        assert ((got.cpu() - features[at]).abs() <= error_bound(codec, features[at])).all()
        assert bank.read(ids[at], slots[at], dtype=torch.bfloat16).dtype == torch.bfloat16
        assert bank.read([], []).shape == (0, 128)


@pytest.mark.parametrize("residency", ["ram", "disk"])
def test_rows_of_several_shards_are_one_table(tmp_path, residency):
    features = unit_rows(90)
    with FeatureBank.create(tmp_path / "bank", codec="fp32", residency=residency) as bank:
        for part, role in enumerate(("unlabeled", "support", "replay")):
            ids = np.arange(30)
            bank.write(ids, np.full(30, part), features[30 * part : 30 * part + 30], labels=ids % 3, role=role)
            bank.commit()
        at = torch.randperm(90, generator=torch.Generator().manual_seed(2))
        assert torch.equal(bank.read(at % 30, at // 30), features[at])
        assert torch.equal(bank.labels(at % 30, at // 30), at % 30 % 3)
        assert torch.equal(bank.keys("support")[1], torch.ones(30, dtype=torch.int64))
        assert len(bank) == 90


def test_fp32_is_bit_exact_for_every_input_type(tmp_path):
    features = unit_rows(8)
    kinds = [features.numpy(), features.bfloat16(), features.half(), features.double().numpy()]
    kinds += [features.to(device) for device in DEVICES]
    with FeatureBank.create(tmp_path / "bank", codec="fp32") as bank:
        for slot, given in enumerate(kinds):
            bank.write(list(range(8)), np.full(8, slot, np.int32), given)
        bank.commit()
        for slot, given in enumerate(kinds):
            expected = torch.as_tensor(given).float().cpu()
            assert torch.equal(bank.read(torch.arange(8, dtype=torch.int32), [slot] * 8), expected)
        for device in DEVICES:
            got = bank.read(torch.arange(8, device=device), torch.zeros(8, dtype=torch.int64), device=device)
            assert got.device.type == device and torch.equal(got.cpu(), features)


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        filled(tmp_path / name)[0].close()
    files = {p.relative_to(tmp_path / "one") for p in (tmp_path / "one").rglob("*") if p.is_file()}
    assert len(files) == 3
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_nothing_is_visible_before_commit(tmp_path):
    bank = FeatureBank.create(tmp_path / "bank")
    bank.write([1], [0], unit_rows(1))
    assert len(bank) == 0 and not bank.contains([1], [0]).any()
    with pytest.raises(KeyError):
        bank.read([1], [0])
    with FeatureBank.open(tmp_path / "bank") as reader:
        assert len(reader) == 0
    with pytest.warns(UserWarning, match="1 rows that were never committed"):
        bank.close()
    bank.close()
    with FeatureBank.open(tmp_path / "bank", "a") as again:
        assert len(again) == 0 and again.verify()
    assert not list((tmp_path / "bank" / "shards").iterdir())


def test_missing_keys_are_listed(tmp_path):
    bank, *_ = filled(tmp_path / "bank")
    with pytest.raises(KeyError, match=r"2 of 3 .*\(7, 9\), \(-5, 0\)"):
        bank.read([7, 7, -5], [0, 9, 0])
    assert bank.contains([7, 7, -5, 2**62], [0, 9, 0, 0]).tolist() == [True, False, False, False]
    bank.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.zeros(2, 7)}, r"features: expected shape \[n, 8\], got \[2, 7\]"),
        ({"features": torch.zeros(16)}, r"features: expected shape"),
        ({"features": torch.zeros(3, 8)}, "features: expected one row per id, 2, got 3"),
        ({"features": torch.zeros(2, 8, dtype=torch.int64)}, "features: expected floating point"),
        ({"features": torch.tensor([[0.0] * 8, [float("nan")] * 8])}, "features: expected finite .* row 1"),
        ({"features": torch.full((2, 8), float("-inf"))}, "features: expected finite"),
        ({"features": torch.full((2, 8), 1e5)}, "features: expected at most 65504 for codec 'fp16', got 100000"),
        ({"ids": [1, 1], "slots": [3, 3]}, r"distinct keys, got .*\(1, 3\)"),
        ({"ids": [[1, 2]]}, r"ids: expected shape \[n\]"),
        ({"ids": [1.0, 2.0]}, "ids: expected signed integers, got float64"),
        ({"slots": [0]}, "slots: expected one per id, 2, got 1"),
        ({"slots": [0, -1]}, "slots: expected numbers in"),
        ({"labels": [0.5, 1.0]}, "labels: expected signed integers"),
        ({"labels": [1]}, "labels: expected one per id"),
        ({"labels": [0, -2]}, "labels: expected classes"),
        ({"role": "teacher"}, "role: expected one of .* got 'teacher'"),
        ({"ids": [9, 1]}, r"does not hold yet, got \(9, 0\)"),
        ({"ids": [8, 1]}, r"does not hold yet, got \(8, 0\)"),
    ],
)
def test_refuses_bad_input_and_writes_nothing(tmp_path, change, message):
    good = {"ids": [1, 2], "slots": [0, 0], "features": torch.zeros(2, 8), "labels": None, "role": "unlabeled"}
    with FeatureBank.create(tmp_path / "bank", dim=8) as bank:
        bank.write([9], [0], torch.zeros(1, 8))
        bank.commit()
        bank.write([8], [0], torch.zeros(1, 8), role="support")
        with pytest.raises(ValueError, match=message):
            bank.write(**{**good, **change})
        bank.commit()
        assert len(bank) == 2


def test_many_small_writes_and_a_late_duplicate(tmp_path):
    with FeatureBank.create(tmp_path / "bank", dim=4) as bank:
        for i in range(100):
            bank.write([i, i + 1000], [0, 0], torch.full((2, 4), float(i)))
        for i in (0, 63, 99):
            with pytest.raises(ValueError, match="does not hold yet"):
                bank.write([5000, i], [0, 0], torch.zeros(2, 4))
        bank.commit()
        assert len(bank) == 200
        assert bank.read([42, 1099], [0, 0])[:, 0].tolist() == [42, 99]


def test_a_new_teacher_is_a_new_generation(tmp_path):
    bank, ids, slots, features = filled(tmp_path / "bank", teacher="first", codec="fp32")
    first = bank.generation
    number = bank.begin_generation("second", task=2, views={"count": 4, "seed": (1, 2)}, dataset="digits")
    bank.write(ids, slots, -features)
    assert torch.equal(bank.read(ids, slots), features), "the old one is served until the new one is committed"
    bank.commit()
    assert bank.generation == number and torch.equal(bank.read(ids, slots), -features)
    bank.close()
    # Killed before the checkpoint was saved: the older generation still serves.
    with FeatureBank.open(tmp_path / "bank", generation=first, teacher="first") as old:
        assert torch.equal(old.read(ids, slots), features)
        pinned = old
        with FeatureBank.open(tmp_path / "bank", "a", teacher="second", views={"count": 4, "seed": [1, 2]}) as bank:
            assert [g.generation for g in bank.generations] == [number, first]
            with pytest.raises(ValueError, match=f"expected one of \\[{first}\\]"):
                bank.evict(generation=number)
            bank.evict(generation=first)
            assert [g.teacher for g in bank.generations] == ["second"]
            assert not list((tmp_path / "bank" / "shards").glob(f"{first:06d}-*"))
        assert torch.equal(pinned.read(ids, slots), features), "a reader keeps what it opened"
    with pytest.raises(BankMismatch, match=f"expected generation {first}, the bank has {number} .*second"):
        FeatureBank.open(tmp_path / "bank", generation=first)


def test_going_back_to_the_older_generation(tmp_path):
    bank, ids, slots, features = filled(tmp_path / "bank", teacher="first", codec="fp32")
    first = bank.generation
    second = bank.begin_generation("second")
    bank.write(ids, slots, -features)
    bank.commit()
    bank.close()
    with FeatureBank.open(tmp_path / "bank", "a", generation=first) as bank:
        bank.evict(generation=second)
        third = bank.begin_generation("second again")
        assert third > second, "numbers are never used twice"
        bank.commit()
        assert [g.generation for g in bank.generations] == [third, first] and len(bank) == 0


def test_beginning_on_an_empty_bank_leaves_no_empty_generation(tmp_path):
    with FeatureBank.create(tmp_path / "bank") as bank:
        bank.begin_generation("teacher")
        bank.write([1], [0], unit_rows(1))
        with pytest.raises(RuntimeError, match="1 rows are not committed"):
            bank.begin_generation("other")
        bank.commit()
        assert len(bank.generations) == 1


@pytest.mark.parametrize("what", ["teacher", "views", "dataset"])
def test_another_fingerprint_is_refused_with_both_values(tmp_path, what):
    FeatureBank.create(tmp_path / "bank", teacher="t-abc", views="v-abc", dataset="d-abc").close()
    FeatureBank.open(tmp_path / "bank", teacher="t-abc", views="v-abc", dataset="d-abc").close()
    with pytest.raises(BankMismatch, match=f"another {what}: expected wanted, the bank has {what[0]}-abc"):
        FeatureBank.open(tmp_path / "bank", **{what: "wanted"})


def test_evicting_a_role_keeps_the_others(tmp_path):
    with FeatureBank.create(tmp_path / "bank", codec="fp32") as bank:
        bank.write([1], [0], unit_rows(1), role="unlabeled")
        bank.write([1], [1], unit_rows(1, seed=1), role="support")
        with pytest.raises(RuntimeError, match="not committed"):
            bank.evict(role="unlabeled")
        bank.commit()
        bank.evict(role="unlabeled")
        bank.evict("replay")
        assert bank.contains([1, 1], [0, 1]).tolist() == [False, True]
        bank.write([1], [0], unit_rows(1, seed=2))
        bank.commit()
    with FeatureBank.open(tmp_path / "bank") as bank:
        assert torch.equal(bank.read([1, 1], [0, 1]), torch.cat([unit_rows(1, seed=2), unit_rows(1, seed=1)]))
        with pytest.raises(RuntimeError, match="open for reading"):
            bank.evict(role="support")


def test_create_does_not_destroy(tmp_path):
    filled(tmp_path / "bank")[0].close()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        FeatureBank.create(tmp_path / "bank")
    with FeatureBank.create(tmp_path / "bank", dim=8, overwrite=True) as bank:
        assert len(bank) == 0 and bank.dim == 8 and bank.generation == 2
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError, match=r"other files \(thesis.txt\)"):
        FeatureBank.create(tmp_path / "home", overwrite=True)
    with pytest.raises(FileNotFoundError, match="holds no committed bank"):
        FeatureBank.open(tmp_path / "nowhere")


def test_closed_and_misused(tmp_path):
    bank, ids, slots, _ = filled(tmp_path / "bank")
    bank.close()
    bank.close()
    with pytest.raises(ValueError, match="closed"):
        bank.read(ids, slots)
    for arguments in ({"mode": "w"}, {"residency": "cloud"}, {"device": "cpu"}):
        with pytest.raises(ValueError, match="expected"):
            FeatureBank.open(tmp_path / "bank", **arguments)
    for arguments in ({"dim": 0}, {"codec": "fp8"}, {"codec": "pq7"}):
        with pytest.raises(ValueError, match=r"dim|codec"):
            FeatureBank.create(tmp_path / "other", **arguments)


@pytest.mark.parametrize(("codec", "bytes_per_row"), [("fp32", 512), ("fp16", 256), ("int8", 130), ("int4", 66)])
def test_bytes(tmp_path, codec, bytes_per_row):
    bank, ids, *_ = filled(tmp_path / "bank", images=1000, codec=codec)
    keys, frame = 12, 4096
    assert len(ids) * bytes_per_row < bank.nbytes < len(ids) * (bytes_per_row + keys) + frame
    bank.close()


def test_fingerprint_sees_every_bit_and_nothing_else():
    a = {"weight": torch.randn(3, 4), "steps": torch.tensor(7)}
    b = {"steps": a["steps"].clone(), "weight": a["weight"].clone()}
    assert fingerprint(a) == fingerprint(b)
    b["weight"][0, 0] = torch.nextafter(b["weight"][0, 0], torch.tensor(9.0))
    assert fingerprint(a) != fingerprint(b)
    assert fingerprint({"w": torch.zeros(2, 3)}) != fingerprint({"w": torch.zeros(3, 2)})
    empty = torch.tensor(np.zeros(3, np.int64)[np.zeros(0, np.int64)])  # numpy and torch give it a stride of 0
    assert fingerprint({"w": empty}) == fingerprint({"w": torch.zeros(0, dtype=torch.int64)})


@pytest.mark.parametrize("codec", [*EXACT_CODECS, "pq32"])
def test_the_format_is_what_the_documentation_says(tmp_path, codec):
    """Run the reader from the documentation, which knows nothing of this package."""
    document = (Path(__file__).parents[2] / "docs" / "featurebank.md").read_text()
    source = next(block for block in document.split("```python\n") if "def read_bank" in block).split("```")[0]
    documented = {}
    exec(source, documented)
    features = unit_rows(600)
    with FeatureBank.create(tmp_path / "bank", codec=codec) as bank:
        bank.write(range(300), [0] * 300, features[:300])
        bank.write(range(300), [5] * 300, features[300:], labels=[1] * 300, role="support")
        bank.commit()
        bank.write([7], [9], features[:1], role="replay")
        bank.commit()
        rows = documented["read_bank"](tmp_path / "bank")
        assert len(rows) == len(bank) == 601
        ids, slots = zip(*rows, strict=True)
        assert np.array_equal(np.stack([row[0] for row in rows.values()]), bank.read(ids, slots).numpy())
        assert [row[1] for row in rows.values()] == bank.labels(ids, slots).tolist()
        assert rows[7, 0][1:] == (-1, "unlabeled") and rows[7, 5][1:] == (1, "support") and rows[7, 9][2] == "replay"
