"""The folder of configurations becomes package data: ``cifnet_pl/configs`` in a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["cifnet_pl*"]), "cifnet_pl.configs"],
    package_dir={"cifnet_pl.configs": "configs"},
    package_data={
        "cifnet_pl": ["py.typed"],
        "cifnet_pl.cli": ["help/*"],
        "cifnet_pl.configs": ["*.yaml", "*/*.yaml"],
        "cifnet_pl.model": ["templates/*"],
        "cifnet_pl.report": ["published.csv", "templates/*"],
        "cifnet_pl.serving": ["journal.sql", "page/*"],
    },
)
