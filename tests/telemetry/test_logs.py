import io

from streamd.telemetry.logs import LossyOutput


class Disk(io.StringIO):
    full = False

    def flush(self):
        if self.full:
            self.truncate(0)
            self.seek(0)
            raise OSError(28, "No space left on device")


def test_a_log_on_a_full_disk_stops_nobody_and_says_later_what_was_lost():
    disk = Disk()
    output = LossyOutput(disk)
    print("one", file=output, flush=True)
    disk.full = True
    for text in ("two", "three"):
        print(text, file=output, flush=True)
    disk.full = False
    print("four", file=output, flush=True)
    assert "2 log lines could not be written" in disk.getvalue() and disk.getvalue().endswith("four\n")
