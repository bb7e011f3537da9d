"""What every test needs: a cache of its own, so that none reads what another run of attnx left behind."""

import pytest

from attnx.cache import VARIABLE


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield
