"""`python -m tests.simulator SEEDS [FIRST]`: run seeds, and print what fails with a trace that replays to the step."""

import argparse
import os
import sys
import time
import zlib


def left_out(text):
    """What a run leaves out: numbers, and names of `PARTS`."""
    return frozenset(int(part) if part.isdigit() else part for part in text.split(",") if part)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="?", default=20, help="number of seeds")
    parser.add_argument("first", type=int, nargs="?", default=0, help="the first one")
    parser.add_argument("--seconds", type=float, default=120.0, help="virtual time with load and faults, of each seed")
    parser.add_argument("--cpu-seconds", type=float, default=None, help="begin no seed after so much time of the CPU")
    parser.add_argument("--first-failure", action="store_true", help="end at the first seed that fails")
    parser.add_argument("--stop-at", type=int, default=None, help="stop at this turn of each seed, and print the trace")
    parser.add_argument("--without", type=left_out, default=frozenset(), help="numbers of faults and parts of the traffic to leave out, with commas")
    parser.add_argument("--trained", type=float, default=0.0, help="share of the seeds in which machines have trainers, and versions are promoted and rolled back")
    parser.add_argument("--shrink-seconds", type=float, default=60.0, help="time of the CPU in which a seed that fails is made smaller; 0 for none")
    parser.add_argument("--trace", type=int, default=60, help="turns of a trace that are printed")
    given = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets of text must be the same in each process, or no seed replays.
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulator", *sys.argv[1:]], os.environ | {"PYTHONHASHSEED": "0"})
    from tests.simulator import world as worlds
    from tests.simulator.scheduler import told
    from tests.simulator.shrink import Shrinker
    from tests.simulator.world import run_seed

    worlds.TRAINED = given.trained
    digest = 0
    begun, used, failed, totals = time.perf_counter(), time.process_time(), [], {"seeds": 0, "simulated": 0.0, "turns": 0, "faults": 0, "events": 0, "commits": 0}
    for seed in range(given.first, given.first + given.seeds):
        if given.cpu_seconds is not None and time.process_time() - used > given.cpu_seconds:
            break
        world, why = run_seed(seed, given.seconds, given.stop_at, given.without)
        digest = zlib.crc32(b"%d" % world.scheduler.digest, digest)
        totals["seeds"] += 1
        totals["simulated"] += world.scheduler.now
        totals["turns"] += world.scheduler.turns
        totals["faults"] += sum(world.faults.counts.values())
        totals["events"] += world.checks.model.num_edges
        totals["commits"] += len(world.checks.history)
        if why:
            failed.append(seed)
            if given.shrink_seconds and given.stop_at is None:
                print(f"seed {seed} fails at turn {world.scheduler.turns}: {why}\n", flush=True)
                small = Shrinker(seed, given.seconds, world, why, given.shrink_seconds).shrink()
                world, why = run_seed(seed, small.seconds, without=small.without)
                print(f"the same after {small.runs} smaller runs: python -m tests.simulator {small.options}")
            print(told(world.scheduler, given.trace))
            print(f"seed {seed} fails at turn {world.scheduler.turns}, digest {world.scheduler.digest:08x}: {why}\n", flush=True)
            if given.first_failure:
                break
    took, used = time.perf_counter() - begun, time.process_time() - used
    print(f"{totals['seeds']} seeds, {totals['simulated']:.0f} simulated seconds in {took:.1f} s, {used:.1f} s of CPU. A second of CPU: "
          f"{totals['simulated'] / used:.0f} simulated seconds, {totals['turns'] / used:.0f} steps, {totals['faults'] / used:.1f} faults. "
          f"{totals['commits']} commits, {totals['events']} events, {totals['faults']} faults; digest {digest:08x}.")
    if failed:
        print(f"failed: {failed}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
