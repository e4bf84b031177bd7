"""Confluent's serializers write values of every format. Argument: address of the registry.

Prints JSON: of each format, the values in hexadecimal and the rows that they are of.
"""

import json
import sys

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

client = SchemaRegistryClient({"url": sys.argv[1]})
context = SerializationContext("clicks", MessageField.VALUE)
wrote = {"avro": [], "protobuf": [], "json-schema": []}


def note(format, value, row):
    wrote[format].append({"value": value.hex(), "row": row})


# Avro: a schema of its own, and one that refers to another subject.
item = {"type": "record", "name": "Item", "namespace": "shop", "fields": [{"name": "id", "type": "string"}]}
plain = {
    "type": "record",
    "name": "Click",
    "fields": [
        {"name": "user", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
    ],
}
row = {"user": 8, "at": 1_600_000_000_123, "tags": ["a", None]}
note("avro", AvroSerializer(client, json.dumps(plain))(row, context), row)
client.register_schema("shop.Item", Schema(json.dumps(item), "AVRO"))
outer = {"type": "record", "name": "Sale", "fields": [{"name": "item", "type": "shop.Item"}]}
needy = Schema(json.dumps(outer), "AVRO", [SchemaReference("shop.Item", "shop.Item", 1)])
row = {"item": {"id": "b41"}}
note("avro", AvroSerializer(client, needy)(row, context), row)

# Protobuf: the second type of a file, one inside it, and the first; the file imports another.
Field = descriptor_pb2.FieldDescriptorProto
common = descriptor_pb2.FileDescriptorProto(name="common.proto", package="common", syntax="proto3")
common.message_type.add(name="Price").field.add(
    name="amount", number=1, type=Field.TYPE_DOUBLE, label=1
)
file = descriptor_pb2.FileDescriptorProto(
    name="shop.proto", package="shop", syntax="proto3", dependency=["common.proto"]
)
file.message_type.add(name="First")
click = file.message_type.add(name="Click")
click.field.add(name="user", number=1, type=Field.TYPE_INT64, label=1)
click.field.add(
    name="price", number=2, type=Field.TYPE_MESSAGE, label=1, type_name=".common.Price"
)
click.nested_type.add(name="Other")
click.nested_type.add(name="Item").field.add(name="id", number=1, type=Field.TYPE_STRING, label=1)
pool = descriptor_pool.Default()
pool.Add(common)
pool.Add(file)
for name, values, row in (
    ("shop.Click", {"user": 8, "price": {"amount": 2.5}}, {"user": 8, "price": {"amount": 2.5}}),
    ("shop.Click", {}, {"user": 0}),
    ("shop.Click.Item", {"id": "b41"}, {"id": "b41"}),
    ("shop.First", {}, {}),
):
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    serializer = ProtobufSerializer(message, client, {"use.deprecated.format": False})
    note("protobuf", serializer(message(**values), context), row)

# JSON Schema.
schema = {"title": "Click", "type": "object", "properties": {"user": {"type": "integer"}}}
row = {"user": 8, "item": {"id": "b41"}}
note("json-schema", JSONSerializer(json.dumps(schema), client)(row, context), row)

print(json.dumps(wrote))
