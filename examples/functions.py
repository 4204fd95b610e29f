"""Functions: call one on a machine that has what it needs, and get its value, or its exception with its traceback.

python examples/functions.py
"""

import platform

import ostler


def sum_of_squares(upto: int) -> int:
    return sum(number * number for number in range(upto))


def where() -> str:
    return platform.node()


def divide(one: float, other: float) -> float:
    return one / other


def main() -> None:
    with ostler.connect() as fleet:  # or ostler.local(): a fleet of its own, for as long as the block
        job = fleet.submit(sum_of_squares, 1000, name="squares", resources={"cpu": 1, "memory": "64m"})
        print(f"{job.id} gives {job.result(timeout=60)}")
        print(f"it was asked for from {where()} and ran on {fleet.submit(where).result(timeout=60)}")
        try:
            fleet.submit(divide, 1, 0).result(timeout=60)
        except ZeroDivisionError as error:
            print(f"an exception comes back as itself: {type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
