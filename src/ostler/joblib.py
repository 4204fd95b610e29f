"""joblib, and with it scikit-learn, on a fleet.

import joblib
import ostler.joblib

ostler.joblib.register()
with joblib.parallel_backend("ostler", resources={"cpu": 1}):
    search.fit(x, y)
"""


def register(*, make_default: bool = False) -> None:
    """Make "ostler" a backend that joblib knows."""
    from joblib.parallel import register_parallel_backend

    from ostler.client.parallel import NAME, FleetBackend

    register_parallel_backend(NAME, FleetBackend, make_default=make_default)
