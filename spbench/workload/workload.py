"""A transformer over named sequence axes, as frozen data whose fields fit together."""

from typing import Self

from pydantic import model_validator

from spbench.workload.fields import WorkloadFields
from spbench.workload.misfits import check


class Workload(WorkloadFields):
    """A transformer and how it is run. Raises ValidationError where fields do not fit together."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        check(self)
        return self
