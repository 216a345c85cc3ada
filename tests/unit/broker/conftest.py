"""What tests of a broker share."""

import pytest
from three_brokers import Node


@pytest.fixture
def nodes(tmp_path):
    made = [Node(number, tmp_path) for number in (1, 2, 3)]
    for node in made:
        node.connect([other for other in made if other is not node])
    return made
