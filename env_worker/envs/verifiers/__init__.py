"""Serves environments of the verifiers package (extra `[verifiers]`); see docs/verifiers.md."""
