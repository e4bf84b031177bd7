"""The settings of MLflow, to which backtests and the live model may be logged."""

from pydantic import Field

from streamd.settings.branch import Branch


class MlflowSettings(Branch):
    """Where scores, versions and backtests are logged, if anywhere."""

    tracking_uri: str = Field(
        "",
        description="MLflow tracking server, such as http://mlflow:5000, or a folder; empty: "
        "nothing is logged",
    )
    experiment: str = Field("streamd", min_length=1, description="experiment of its runs")
