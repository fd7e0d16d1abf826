"""What pyproject.toml can't say: in a wheel, calibration_tables/ is a part of the package."""

from setuptools import find_packages, setup

TABLES = "hf_specverify.calibration_tables"

setup(
    packages=[*find_packages(include=["hf_specverify*"]), TABLES],
    package_dir={TABLES: "calibration_tables"},
)
