"""The type checker that every test runs under: beartype, with `0` allowed where a float is asked for."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
