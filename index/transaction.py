"""Transactions with subjects: what is published is part of the commit, or does not happen."""

from __future__ import annotations

from typing import Any

from ..stream import transaction
from ..stream.header import NodeLimits
from ..stream.source import Direct
from .leases import Leases
from .publish import Publication, Reached
from .routes import Known


class Transaction(transaction.Transaction):
    """All or nothing, one commit: made by ``store.transaction()``, used with ``with``."""

    __slots__ = ("_known", "_leases")

    def __init__(self, direct: Direct, encoding: str | None, limits: NodeLimits, known: Known, leases: Leases) -> None:
        super().__init__(direct, encoding, limits)
        self._known = known
        self._leases = leases

    def __enter__(self) -> Transaction:
        super().__enter__()
        return self

    def publish(self, subject: Any, fields: Any) -> Reached:
        """Store.publish() as part of the transaction: nobody hears of it before the commit."""
        publication = Publication(subject, fields)
        return self.apply(publication.operation(self._known, self._leases, self._limits, self._encoding))
