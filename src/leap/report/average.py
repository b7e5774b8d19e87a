"""Several seeds as one: means of numbers, whatever they are nested in."""

from typing import Any


def average(items: list[Any]) -> Any:
    """Return one value for the values of several seeds.

    Numbers become their mean, over the seeds that have one; mappings and lists of equal length are averaged
    by part; counts by layer ({"6": 3}) count a missing layer as 0. True only where true for all. Of texts
    that differ all stay. Null where no seed has a value.
    """
    present = [item for item in items if item is not None]
    if not present:
        return None
    first = present[0]
    if all(isinstance(item, bool) for item in present):
        return all(present)
    if all(isinstance(item, int | float) for item in present):
        # A number that all seeds agree on stays as it is: 12 layers, not 12.0.
        return first if all(item == first for item in present) else sum(present) / len(present)
    if all(isinstance(item, dict) for item in present):
        names = list(dict.fromkeys(name for item in present for name in item))
        counts = bool(names) and all(str(name).isdigit() for name in names)
        if counts:
            names.sort(key=int)
        return {name: average([item.get(name, 0 if counts else None) for item in present]) for name in names}
    if all(isinstance(item, list) and len(item) == len(first) for item in present):
        return [average([item[i] for item in present]) for i in range(len(first))]
    return " / ".join(dict.fromkeys(str(item) for item in present))
