"""Consumer groups: what is delivered, pending, acknowledged, claimed, and waited for."""
