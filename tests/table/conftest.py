import pytest

from tests.table.logs import learn_shop, shop_log


@pytest.fixture(scope="session")
def shop(tmp_path_factory):
    """A log of views and buys with late events and deletes, of which a trainer has learned all windows; tests only read it."""
    path = tmp_path_factory.mktemp("shop")
    shop_log(path)
    learn_shop(path)
    return path
