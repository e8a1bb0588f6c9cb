"""Tests here may be coroutines."""

from bayplan.testing.coroutines import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
