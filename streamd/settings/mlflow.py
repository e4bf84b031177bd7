"""The settings of MLflow, which gets scores of the live model and of backtests."""

from pydantic import Field

from streamd.settings.branch import Branch


class MlflowSettings(Branch):
    """The MLflow server or folder for scores, versions and backtests."""

    tracking_uri: str = Field(
        "",
        description="MLflow tracking server, such as http://mlflow:5000, or a folder; empty: "
        "no logging",
    )
    experiment: str = Field("streamd", min_length=1, description="MLflow experiment of the runs")
