"""What a bank holds, as numbers and as lines for a person."""

from pathlib import Path
from typing import Any

from nncsl.banks.place import Place, opened
from nncsl.featurebank import FeatureBank
from nncsl.featurebank.manifest import Generation
from nncsl.record import checkpoint


def info(place: Place) -> dict[str, Any]:
    """Everything recorded of the bank's live generations, the current one first; sizes in bytes."""
    with opened(place, verify=False) as bank:
        numbers = [generation.generation for generation in bank.generations]
    generations = []
    for number in numbers:
        with opened(place, number, verify=False) as bank:
            generations.append(_generation(bank))
    return {
        "path": str(place.bank),
        "run": None if place.run is None else str(place.run),
        "bytes": sum(generation["bytes"] for generation in generations),
        "teacher_network_bytes": None if place.run is None else _network_bytes(place.run),
        "generations": generations,
    }


def _counted(task: Any) -> str:
    """A run's tasks have numbers from 0 and are counted from 1; another bank may call them what it likes."""
    return "not recorded" if task is None else str(task + 1 if isinstance(task, int) else task)


def lines(found: dict[str, Any]) -> list[str]:
    """The same for a person to read."""
    shown = [f"{found['path']}: {_size(found['bytes'])} in {_count(len(found['generations']), 'generation')}"]
    if network := found["teacher_network_bytes"]:
        current = found["generations"][0]["bytes"]
        shown.append(
            f"a teacher network would take {_size(network)}: the current generation takes {current / network:.2f} of it"
        )
    for place, one in enumerate(found["generations"]):
        codec = f"{one['codec']}, {one['dim']} numbers each" + (", L2-normalized" if one["normalized"] else "")
        if one["agreement"] is not None:
            codec += f", nearest neighbors agree in {100 * one['agreement']:.1f}%"
        shown += [
            "",
            f"generation {one['generation']}" + (" (current)" if place == 0 else ""),
            f"  teacher   {one['teacher'] or 'not recorded'}",
            f"  task      {_counted(one['task'])}",
            f"  dataset   {one['dataset'] or 'not recorded'}",
            f"  views     {'not recorded' if one['views'] is None else one['views']}",
            f"  features  {one['rows']} of {_count(one['images'], 'image')}; {codec}",
            f"  slots     {_count(one['slots'], 'slot')}, numbered up to {one['largest_slot']}",
            f"  labels    {one['labeled_rows']} rows with one",
            f"  size      {_size(one['bytes'])}",
        ]
        for role, part in one["roles"].items():
            shown.append(
                f"  {role:<10}{part['rows']} rows, {_count(part['images'], 'image')}, "
                f"{_count(part['slots'], 'slot')}, {_size(part['bytes'])}"
            )
    return shown


def _generation(bank: FeatureBank) -> dict[str, Any]:
    manifest = bank.manifest
    ids, slots = bank.keys()
    facts = ("generation", "commit", "teacher", "task", "dataset", "views", "codec", "dim", "normalized", "agreement")
    return {
        **{name: getattr(manifest, name) for name in facts},
        "rows": len(bank),
        "images": len(ids.unique()),
        "slots": len(slots.unique()),
        "largest_slot": int(slots.max()) if len(slots) else None,
        "labeled_rows": int((bank.labels(ids, slots) >= 0).sum()),
        "bytes": bank.nbytes,
        "roles": {role: _role(bank, manifest, role) for role in dict.fromkeys(s.role for s in manifest.shards)},
    }


def _role(bank: FeatureBank, manifest: Generation, role: str) -> dict[str, int]:
    ids, slots = bank.keys(role)
    size = sum(shard.bytes for shard in manifest.shards if shard.role == role)
    return {"rows": len(ids), "images": len(ids.unique()), "slots": len(slots.unique()), "bytes": size}


def _network_bytes(run: Path) -> int | None:
    """Return the bytes of the method in the run's checkpoint: what a copy of it as a teacher would take."""
    path = run / "checkpoint" / "state.pt"
    if not path.exists():
        return None
    return sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.load(path)["method"].values())


def _size(count: int) -> str:
    return f"{count / 1e6:.2f} MB ({count:,} bytes)"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")
