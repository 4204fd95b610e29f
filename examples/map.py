"""A map: one call for each element, spread over the fleet, the values in order.

python examples/map.py
"""

import collections

import ostler

TEXTS = [
    "the right horse for each coach",
    "the tired horse is swapped for a fresh one",
    "a horse that does not fit blocks nobody",
    "the ostler knows each horse in the yard",
]


def count(text: str) -> dict[str, int]:
    return dict(collections.Counter(text.split()))


def inverse(number: int) -> float:
    return 1 / number


def main() -> None:
    with ostler.connect() as fleet:
        total: collections.Counter[str] = collections.Counter()
        for found in fleet.map(count, TEXTS, name="count", resources={"cpu": 0.5}):
            total.update(found)
        print(f"{total['horse']} horses, {total['the']} thes")

        # With return_exceptions one call that fails does not end the others.
        for number, value in enumerate(fleet.map(inverse, range(3), return_exceptions=True)):
            print(f"1/{number}: {value!r}")


if __name__ == "__main__":
    main()
