"""Renders and lints a chart with Helm's own engine, without a cluster: CHART RELEASE < values.json > documents.json.

It runs where helm-python-sdk is installed, an environment of its own.
"""

import json
import sys

from helm_python import Chart, HelmError, lint

chart, release, values = sys.argv[1], sys.argv[2], json.load(sys.stdin)
try:
    report = lint(chart, values, strict=True)
    files = Chart.load(chart).render(values, name=release, namespace="streams")
except HelmError as error:
    sys.exit(str(error))
json.dump({"lint": [m for m in report["messages"] if m["severity"] > 1], "files": files}, sys.stdout)
