"""A changelog in memory."""

from streamd.errors import KafkaError


class TwinChangelog:
    """A changelog in memory: offsets of its oldest record and behind its newest one."""

    def __init__(self, end=100):
        self.first, self.end, self.away, self.deletes = 0, end, False, []

    def bounds(self):
        if self.away:
            raise KafkaError("no broker answers")
        return self.first, self.end

    def delete_before(self, offset):
        self.bounds()
        assert offset <= self.end
        self.first = max(self.first, offset)
        self.deletes.append(offset)
