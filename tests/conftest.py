"""What holds for all tests: no property fails because a machine is busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("bayplan", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("bayplan")
