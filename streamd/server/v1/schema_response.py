"""Makes the response of `GET /v1/schema` from the settings."""

from streamd.server.v1.schemas import EdgeSetInfo, Feature, NodeSetInfo, SchemaResponse
from streamd.settings.loading import Settings, edge_sets, node_sets, schema_of
from streamd.settings.sets import FeatureSettings, SetSettings


def schema_response(settings: Settings) -> SchemaResponse:
    """The declared sets, with the widths of their features in columns of the log."""
    schema = schema_of(settings)
    names = schema.node_set_names
    nodes = [
        NodeSetInfo(name=name, width=_width(schema.node_columns(i)), features=_features(one))
        for i, (name, one) in enumerate(node_sets(settings).items())
    ]

    # Edge sets also name the node sets of their endpoints.
    edges = []
    for i, (name, declared) in enumerate(edge_sets(settings).items()):
        source, target = schema.ends_of(i)
        edges.append(
            EdgeSetInfo(
                name=name,
                width=_width(schema.edge_columns(i)),
                features=_features(declared),
                source=names[source],
                target=names[target],
            )
        )
    return SchemaResponse(
        node_sets=nodes,
        edge_sets=edges,
        label_dim=schema.label_dim,
        time_unit=settings.stream.time_unit,
    )


def _width(columns: slice) -> int:
    width: int = columns.stop - columns.start
    return width


def _features(declared: SetSettings) -> list[Feature]:
    return [_feature(name, feature) for name, feature in declared.features.items()]


def _feature(name: str, feature: FeatureSettings) -> Feature:
    return Feature(
        name=name,
        kind=feature.words.partition(":")[0],
        width=feature.width,
        categories=None if feature.categories is None else list(feature.categories),
        missing=feature.missing,
    )
