"""Each alert fires and is silent where it should, and each panel has data, on what the roles export.

The series are those of a real run (`scrapes/`, made by `python -m tests.deploy.running`); a case
changes some of them, and can change no other. Three deployments share each Prometheus of the tests.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from streamd.telemetry import metrics, replica_metrics, trial_metrics  # noqa: F401 - all series are registered
from tests.deploy.running import SCRAPES, scraped

DEPLOY = Path(__file__).parents[2] / "deploy"
SICK, WELL, OTHER = ("shop", "streamd"), ("shop", "streamd-2"), ("bank", "streamd")
"""Namespace and job of three deployments."""
RULES = {r["alert"]: r for r in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"][0]["rules"]}
BOARD = json.loads((DEPLOY / "grafana/streamd.json").read_text())
PANELS = [(p["title"], t["expr"].replace("$namespace", SICK[0]).replace("$job", SICK[1])) for p in BOARD["panels"] for t in p["targets"]]
EVENTS = 'ingest streamd_events_total{kind="edge"}'
OK = 'serve streamd_requests_total{route="/v1/score",status="200"}'
FAST = 'serve streamd_request_seconds_bucket{le="0.06",route="/v1/score"}'
ALL = 'serve streamd_request_seconds_bucket{le="+Inf",route="/v1/score"}'
SLOW = [f'serve streamd_request_seconds_bucket{{le="{le}",route="/v1/score"}}'
        for le in ("0.125", "0.25", "0.5", "1.0", "2.0", "5.0")]
LAG = 'ingest streamd_lag_records{partition="0",topic="events"}'
COMMIT = "ingest streamd_last_commit_timestamp_seconds"
MARK, UNTIL = "ingest streamd_watermark_timestamp_seconds", "train streamd_trained_until_timestamp_seconds"
TRAIN = {"role": "train", "instance": "train"}
INGEST = {"role": "ingest", "instance": "ingest"}
FAILED = 'archive streamd_archive_rounds_total{outcome="failed"}'
COUNTS = ("_total", "_bucket", "_sum", "_count")
EMPTY_WHERE_WELL = {
    "Champions minus the last proven version (MRR)": "nothing is compared until windows come after a verdict",
    "Trial: value a unit minus the champion's": "nothing is compared before each arm has 100 units"}
"""Panels of the dashboard that a healthy run may have no data for, and why."""
CASES = {
    # alert: interval, minute, series that fire, series that do not, further labels it then has, [what it says]
    "StreamdRoleDown": ("1m", 5, {"train up": "1 1 0x9"}, {"train up": "1 0 0 1x9"}, TRAIN,
                        "The train role cannot be scraped."),
    "StreamdRoleRefused": ("1m", 1, {'serve streamd_role_refused{refused="ingest"}': "1x9"}, {}, {"refused": "ingest"},
                           "The ingest role ended because its data cannot be used; the daemon does not restart it."),
    "StreamdIngestStalled": ("1m", 6, {LAG: "500x9", COMMIT: "0x9"}, {LAG: "500x9", COMMIT: "0+60x9"}, {}),
    "StreamdIngestBehind": ("1m", 15, {'ingest streamd_lag_seconds{partition="0",topic="events"}': "90x20"},
                            {'ingest streamd_lag_seconds{partition="0",topic="events"}': "59x20"}, {},
                            "Ingest lags Kafka by 1m 30s."),
    "StreamdDataLost": ("1m", 5, {"ingest streamd_data_gaps_total": "0 0 1x9"},
                        {"ingest streamd_data_gaps_total": "1x11"}, INGEST),
    "StreamdDeadLetters": ("1m", 25, {EVENTS: "0+100x30", 'ingest streamd_dead_letters_total{reason="bad_json"}': "0+2x30"},
                           {EVENTS: "0+1000x30", 'ingest streamd_dead_letters_total{reason="bad_json"}': "0+9x30"}, {}),
    "StreamdTableTruncated": ("1m", 5, {'ingest streamd_dropped_events_total{reason="truncate",topic="orders"}': "0 0 1x9"},
                              {'ingest streamd_dropped_events_total{reason="drop_keys",topic="orders"}': "0 0 1x9"}, INGEST | {"reason": "truncate", "topic": "orders"},
                              "A table of topic orders was truncated; the edges of its rows stay in the graph."),
    "StreamdEventsLate": ("1m", 25, {EVENTS: "0+100x30", "ingest streamd_clamped_events_total": "0+6x30"},
                          {EVENTS: "0+100x30", "ingest streamd_clamped_events_total": "0+4x30"}, {}),
    "StreamdWindowsLeftOut": ("1m", 5, {'train streamd_windows_total{outcome="left_out"}': "0 0 1x9"},
                              {'train streamd_windows_total{outcome="learned"}': "0+1x9"}, TRAIN | {"outcome": "left_out"}),
    "StreamdClockWrong": ("1m", 5, {"ingest streamd_clock_behind_log_seconds": "3600x9"}, {}, {},
                          "Ingest's clock is 1h 0m 0s behind the newest event; it reads nothing until the clock is right."),
    "StreamdTopicMissing": ("1m", 5, {'ingest streamd_topic_missing{topic="events"}': "0 1x9"}, {'ingest streamd_topic_missing{topic="events"}': "0 1 0 1 0x9"},
                            {"topic": "events"}, "Kafka has no topic events; ingest reads nothing of it."),
    "StreamdFirstTimesHeld": ("1m", 5, {"ingest streamd_first_times_held": "1x9"}, {}, {}),
    "StreamdSchemaRegistryAway": ("1m", 8, {"ingest streamd_schema_registry_away": "0 1x9"}, {"ingest streamd_schema_registry_away": "0 1 0 1 0x9"}, {},
                                  "Ingest waits for the schema registry and reads nothing."),
    "StreamdPartitionSilent": ("1m", 25, {'ingest streamd_silent_partitions_total{partition="1",topic="events"}': "0 0+1x30"},
                               {'ingest streamd_silent_partitions_total{partition="1",topic="events"}': "0 1x30"}, {}),
    "StreamdTrainerBehind": ("1m", 35, {MARK: "20000x40", UNTIL: "3600x40"}, {MARK: "18000x40", UNTIL: "3600x40"}, {},
                             "The trainer lags the log by 4h 33m 20s of event time."),
    "StreamdModelBelowRule": ("5m", 15, {"train streamd_below_rule": "1x20"}, {"train streamd_below_rule": "1x10 0 1x9"}, {}),
    "StreamdRolledBack": ("1m", 5, {'train streamd_gate_verdicts_total{verdict="worse"}': "0 0 1x9"},
                          {'train streamd_gate_verdicts_total{verdict="proven"}': "0 0 1x9"}, TRAIN | {"verdict": "worse"}),
    "StreamdVersionsRefused": ("1h", 5, {'train streamd_versions_total{promoted="false"}': "0+1x9"},
                               {'train streamd_versions_total{promoted="false"}': "0 0 1 2 2x9",
                                'train streamd_versions_total{promoted="true"}': "0+9x9"}, TRAIN | {"promoted": "false"}),
    "StreamdChampionNotServed": ("1m", 5, {"serve streamd_champion_not_served": "1x9"}, {}, {}),
    "StreamdDrift": ("1m", 5, {"train streamd_window_surprise": "4.5x9"}, {"train streamd_window_surprise": "3.9x9"}, TRAIN,
                     "The newest window's MRR is 4.5 standard deviations below the windows before: the stream changed."),
    "StreamdForgetting": ("5m", 90, {"train streamd_past_mrr": "0.9x10 0.6x90"},
                          {"train streamd_past_mrr": "0.9x10 0.73x90"}, TRAIN),
    "StreamdAnswersFailing": ("1m", 15, {OK: "0+100x20", OK.replace("200", "503"): "0+5x20"},
                              {OK: "0+1000x20", OK.replace("200", "503"): "0+5x20"}, {}),
    "StreamdOverloaded": ("1m", 15, {OK.replace("200", "429"): "0+1x20"}, {OK.replace("200", "422"): "0+1x20"}, {}),
    "StreamdAnswersSlow": ("1m", 20, {ALL: "0+100x20", FAST: "0+98x20"} | dict.fromkeys(SLOW, "0+100x20"),
                           {ALL: "0+100x20", FAST: "0+98x20", "serve streamd_score_slo_seconds": "0.1x20"} | dict.fromkeys(SLOW, "0+100x20"), {},
                           "The p99 of /v1/score is 92.5ms."),
    "StreamdAnswersOld": ("1m", 12, {"serve streamd_complete_until_timestamp_seconds": "1x20"},
                          {"serve streamd_complete_until_timestamp_seconds": "0+60x20"}, {},
                          "Answers lack the events of the last 11m 59s in Kafka."),
    "StreamdServerBehind": ("1m", 8, {"ingest streamd_log_edges": "200001x9", "serve streamd_served_edges": "1x9"},
                            {"ingest streamd_log_edges": "200001x9", "serve streamd_served_edges": "100001x9"}, {},
                            "Answers lack the newest 200k events of the log."),
    "StreamdMemoryBehind": ("1m", 12, {"serve streamd_caught_up_timestamp_seconds": "1x20"},
                            {"serve streamd_caught_up_timestamp_seconds": "0+60x20"}, {},
                            "A server's graph and memory have lagged the log for 11m 59s."),
    "StreamdManifestOld": ("1m", 35, {"archive streamd_manifest_timestamp_seconds": "1x40"},
                           {"archive streamd_manifest_timestamp_seconds": "0+60x40"}, {},
                           "The store's newest manifest is 34m 59s old; the changelog grows."),
    "StreamdArchiveFailing": ("1m", 30, {FAILED: "0+1x40"}, {FAILED: "0+1x40", FAILED.replace("failed", "stored"): "0+1x40"}, {}),
    "StreamdForgettingWaits": ("1m", 65, {"archive streamd_compaction_waits_since_timestamp_seconds": "1x70"},
                               {"archive streamd_compaction_waits_since_timestamp_seconds": "0x70"}, {},
                               "Data that a compaction removed 1h 4m 59s ago may still be in the store or the changelog."),
    "StreamdFollowerBehind": ("1m", 12, {"follow streamd_follow_caught_up_timestamp_seconds": "1x20"},
                              {"follow streamd_follow_caught_up_timestamp_seconds": "0+60x20"}, {},
                              "A follower has lagged the changelog for 11m 59s."),
    "StreamdNoLeader": ("1m", 8, {"ingest streamd_leads": "1 _x20", "follow streamd_leads": "0x20"},
                        {"ingest streamd_leads": "1x20", "follow streamd_leads": "0x20"}, {}),
    "StreamdLeaderUnsteady": ("1m", 25, {"ingest streamd_leader_term": "2x10 3+1x20"}, {"ingest streamd_leader_term": "2x10 3x20"}, {},
                              "15 new terms of a leader began within half an hour: the lead moved, or the leader restarted."),
    "StreamdModelsWaiting": ("5m", 10, {"train streamd_models_waiting": "2x20"}, {"train streamd_models_waiting": "2x3 0x20"}, {}),
    "StreamdCannotLead": ("1m", 8, {'follow streamd_cannot_lead{why="disk"}': "1x9"},
                          {'follow streamd_cannot_lead{why="disk"}': "1x2 0x9"}, {"instance": "follow", "why": "disk"},
                          "The standby follow follows but cannot take the lead: disk."),
    "StreamdStrayRecords": ("1m", 5, {'follow streamd_stray_records_total{topic="changelog"}': "0 0 1x9"},
                            {'follow streamd_stray_records_total{topic="changelog"}': "7x11"}, {"topic": "changelog"},
                            "The changelog topic has records that streamd did not write; they are skipped."),
    "StreamdScoresSkipped": ("1m", 15, {'score streamd_scores_skipped_total{reason="behind"}': "0+5x20"},
                             {'score streamd_scores_skipped_total{reason="deleted"}': "0+5x20"}, {"reason": "behind"},
                             "Events get no score in time: behind."),
    "StreamdRetentionBlocked": ("5m", 26, {"ingest streamd_retention_blocked_bytes": "1048576x30"}, {}, INGEST,
                                "Retention cannot drop 1MiB of segments, because a role still needs them."),
    "StreamdHousekeepingFailing": ("1m", 15, {'ingest streamd_housekeeping_failing{work="retention"}': "0 1x20"},
                                   {'ingest streamd_housekeeping_failing{work="retention"}': "0 1x5 0 1x5 0x20"}, {"work": "retention"},
                                   "Housekeeping of the log has failed for ten minutes: retention. Ingest continues."),
}


def exported():
    """{series as `role name{labels}`: value} of the real run, with `up` as Prometheus makes it."""
    found = {}
    for role in metrics.OWNED:
        found[f"{role} up"] = 1.0
        for (name, labels), value in scraped((SCRAPES / f"{role}.prom").read_text()).items():
            inner = ",".join(f'{k}="{v}"' for k, v in labels)
            found[f"{role} {name}" + (f"{{{inner}}}" if inner else "")] = value
    return found


EXPORTED = exported()
ASKED = {name for r in RULES.values() for name in re.findall(r"\b(?:streamd_\w+|up)\b", r["expr"])}
NAMES = {series.partition("{")[0] for series in EXPORTED} | {
    f"{role} {name}" for role in metrics.OWNED for name in re.findall(r"^# TYPE (\S+)", (SCRAPES / f"{role}.prom").read_text(), re.M)}
"""Also those of counters whose labels no healthy run has."""


def stored_name(series):
    return series.partition(" ")[2].partition("{")[0]


def as_stored(series, deployment):
    """As Prometheus stores it: with the labels of its target, which rename those of the same name."""
    namespace, job = deployment
    role, _, rest = series.partition(" ")
    name, _, labels = rest.partition("{")
    target = f'namespace="{namespace}",job="{job}",role="{role}",instance="{role}"'
    labels = labels.replace("role=", "exported_role=")
    return f"{name}{{{target}{',' if labels else '}'}{labels}"


def series_of(changed, steps, deployment):
    """Input series of promtool: of all metrics that alerts ask for what each role exports, constant
    or as changed."""
    for series in changed:
        assert series in EXPORTED or series.partition("{")[0] in NAMES, f"no role exports {series}"
    rows = {s: f"{value}x{steps}" for s, value in EXPORTED.items()} | changed
    out = []
    for series, values in rows.items():
        if stored_name(series) in ASKED:
            out.append({"series": as_stored(series, deployment), "values": values})
    return out


def check(tmp_path, tests, interval):
    """Have promtool test the rules, evaluated once an interval."""
    file = tmp_path / f"{interval}.yaml"
    file.write_text(json.dumps({"rule_files": [str(DEPLOY / "alerts.yaml")], "evaluation_interval": interval, "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def minutes(interval, step):
    return f"{step * {'1m': 1, '5m': 5, '1h': 60}[interval]}m"


needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@needs_promtool
def test_every_alert_names_the_one_sick_deployment_of_three(tmp_path):
    """The second one has the case's well series, in the same namespace under another job; the third
    one is the real run, in another namespace under the same job."""
    assert set(CASES) == set(RULES)
    tests = {"1m": [], "5m": [], "1h": []}
    for name, (interval, step, sick, well, labels, *says) in CASES.items():
        rule = RULES[name]
        fires = {"exp_labels": {"severity": rule["labels"]["severity"], "namespace": SICK[0], "job": SICK[1], **labels},
                 "exp_annotations": {"summary": says[0] if says else rule["annotations"]["summary"]}}
        series = [s for changed, deployment in ((sick, SICK), (well, WELL), ({}, OTHER)) for s in series_of(changed, step + 5, deployment)]
        tests[interval].append({"interval": interval, "input_series": series, "alert_rule_test": [
            {"eval_time": minutes(interval, step), "alertname": name, "exp_alerts": [fires]}]})
    for every, some in tests.items():
        check(tmp_path, some, every)


@needs_promtool
def test_no_alert_fires_on_a_healthy_run_nor_before_anything_is_known(tmp_path):
    still = [{"eval_time": f"{m}m", "alertname": name, "exp_alerts": []} for name in RULES for m in (10, 130, 400)]
    series = series_of({}, 90, SICK)
    started = [s for s in series if s["series"].startswith("up")]
    check(tmp_path, [{"interval": "5m", "input_series": some, "alert_rule_test": still} for some in (series, started)], "5m")


@needs_promtool
def test_every_panel_of_the_dashboard_has_data_of_a_healthy_run(tmp_path):
    """Counters stand at 0 for two minutes, then at what the run came to."""
    series = [{"series": as_stored(s, SICK), "values": f"0x8 {v}x12" if stored_name(s).endswith(COUNTS) else f"{v}x20"}
              for s, v in EXPORTED.items()]
    wanted = [f"count(({expr}) == ({expr})) > bool 0" for title, expr in PANELS if title not in EMPTY_WHERE_WELL]
    has = {"exp_samples": [{"labels": "{}", "value": 1}], "eval_time": "150s"}
    check(tmp_path, [{"interval": "15s", "input_series": series, "promql_expr_test": [
        {"expr": expr} | has for expr in wanted]}], "15s")
    assert set(EMPTY_WHERE_WELL) <= {title for title, _ in PANELS}


def test_the_series_are_those_that_the_roles_export_now():
    for role in metrics.OWNED:
        now = {family.name for family in metrics.exported_by(role).collect() if family.name.startswith("streamd_")}
        text = (SCRAPES / f"{role}.prom").read_text()
        then = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (streamd_\S+)", text, re.M)}
        assert now == then, f"`python -m tests.deploy.running` makes {role}.prom anew"
