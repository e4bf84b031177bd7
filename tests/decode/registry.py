"""A schema registry for tests: a real HTTP server that speaks the REST API, and can be told to fail; values as serializers frame them."""

import base64
import io
import json
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import fastavro
from google.protobuf import descriptor_pb2, message_factory, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool

CLICK = {"type": "record", "name": "Click", "namespace": "shop", "fields": [
    {"name": "user_id", "type": "long"},
    {"name": "item", "type": {"type": "record", "name": "Item", "fields": [{"name": "id", "type": "string"}]}},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["view", "buy"]}},
    {"name": "seconds", "type": ["null", "double"], "default": None},
    {"name": "price", "type": [{"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, "null"]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "more", "type": {"type": "map", "values": "long"}}]}
"""An Avro schema with a bit of everything."""


class Registry:
    """Owner: the test. schemas: by id or GUID, as the API answers; has_guids: whether it has the route of GUIDs; versions: by subject and version; asked: paths so far.

    fault: (status, content type, body) to answer everything with, or a function of the handler; None: it works.
    """

    def __init__(self):
        self.schemas, self.versions, self.asked, self.headers, self.fault = {}, {}, [], [], None
        self.has_guids = True
        registry = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self):
                registry.asked.append(self.path)
                registry.headers.append(dict(self.headers))
                if callable(registry.fault):
                    registry.fault(self)
                    return
                status, kind, body = registry.fault or registry.answer(self.path)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(registry.register(unquote(urlsplit(self.path).path.split("/")[2]), asked)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args): ...

            def handle(self):
                try:
                    super().handle()
                except OSError:
                    self.close_connection = True

        self._handler = Handler
        self.start(0)

    def start(self, port):
        self.server = ThreadingHTTPServer(("127.0.0.1", port), self._handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def answer(self, path):
        parts = urlsplit(path)
        steps, form = [unquote(s) for s in parts.path.split("/")[1:]], parse_qs(parts.query).get("format", [""])[0]
        try:
            if steps[:2] == ["schemas", "guids"] and not self.has_guids:
                return 404, "application/json", b'{"error_code": 404, "message": "HTTP 404 Not Found"}'
            by = {"ids": lambda text: self.schemas[int(text)], "guids": lambda text: self.schemas[uuid.UUID(text)]}
            found = by[steps[1]](steps[2]) if steps[0] == "schemas" else self.versions[steps[1], int(steps[3])]
        except (KeyError, IndexError, ValueError):
            # The API's ids are Java's ints: another number is no address of it.
            code = 404 if steps[-1].isdecimal() and int(steps[-1]) >= 2**31 else {"schemas": 40403, "subjects": 40401}.get(steps[0], 404)
            return 404, "application/vnd.schemaregistry.v1+json", json.dumps({"error_code": code, "message": "not found"}).encode()
        if found.get("schemaType") == "PROTOBUF" and form != "serialized":
            found = found | {"schema": 'syntax = "proto3";'}
        return 200, "application/vnd.schemaregistry.v1+json", json.dumps(found).encode()

    def add(self, number, schema, kind="AVRO", references=()):
        """Register a schema under an id. references: (name, subject, version) of others."""
        self.schemas[number] = _entry(schema, kind, references)
        return number

    def refer(self, subject, version, schema, kind="AVRO", references=()):
        self.versions[subject, version] = _entry(schema, kind, references)

    def register(self, subject, asked):
        """Register what a serializer sends, as the API does: the same schema has the same id."""
        known = [n for n, schema in self.schemas.items() if schema == asked]
        number = known[0] if known else len(self.schemas) + 1
        self.schemas[number] = asked
        versions = [v for (name, v), schema in self.versions.items() if name == subject and schema == asked]
        version = versions[0] if versions else 1 + sum(name == subject for name, _ in self.versions)
        self.versions[subject, version] = asked
        return asked | {"id": number, "version": version, "subject": subject}

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def _entry(schema, kind, references):
    text = schema if isinstance(schema, str) else file_text(schema) if kind == "PROTOBUF" else json.dumps(schema)
    entry = {"schema": text, "references": [dict(zip(("name", "subject", "version"), r, strict=True)) for r in references]}
    return entry if kind == "AVRO" else entry | {"schemaType": kind}


def file_text(file):
    return base64.b64encode(file.SerializeToString()).decode()


def trickle(handler):
    """A fault: an answer that sends a byte now and then, and never ends."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "100000")
    handler.end_headers()
    try:
        for _ in range(200):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.05)
    except OSError:
        handler.close_connection = True


def framed(number, body):
    return b"\0" + number.to_bytes(4, "big") + body


def avro(number, schema, value):
    """A value as Avro's serializer writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return framed(number, out.getvalue())


F = descriptor_pb2.FieldDescriptorProto


def proto_file():
    """shop.Click and, inside it, Click.Item; a second type Nothing; both sides of presence, lists, maps, enums, times."""
    file = descriptor_pb2.FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto", "common.proto", "confluent/meta.proto"])
    file.enum_type.add(name="Kind").value.extend([descriptor_pb2.EnumValueDescriptorProto(name="view", number=0), descriptor_pb2.EnumValueDescriptorProto(name="buy", number=1)])
    file.message_type.add(name="Nothing")
    click = file.message_type.add(name="Click")
    click.nested_type.add(name="Other")
    click.nested_type.add(name="Item").field.add(name="id", number=1, type=F.TYPE_STRING, label=1)
    entry = click.nested_type.add(name="MoreEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=F.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=F.TYPE_INT64, label=1)
    for number, (name, kind, label, of) in enumerate([
            ("user_id", F.TYPE_INT64, 1, ""), ("item", F.TYPE_MESSAGE, 1, ".shop.Click.Item"), ("ts", F.TYPE_MESSAGE, 1, ".google.protobuf.Timestamp"),
            ("kind", F.TYPE_ENUM, 1, ".shop.Kind"), ("tags", F.TYPE_STRING, 3, ""), ("more", F.TYPE_MESSAGE, 3, ".shop.Click.MoreEntry"),
            ("parts", F.TYPE_MESSAGE, 3, ".shop.Click.Item"), ("price", F.TYPE_MESSAGE, 1, ".common.Price")], 1):
        click.field.add(name=name, number=number, type=kind, label=label, type_name=of or None)
    click.oneof_decl.add(name="_seconds")
    click.field.add(name="seconds", number=20, type=F.TYPE_DOUBLE, label=1, oneof_index=0, proto3_optional=True)
    return file


def common_file():
    file = descriptor_pb2.FileDescriptorProto(name="default", package="common", syntax="proto3")
    file.message_type.add(name="Price").field.add(name="amount", number=1, type=F.TYPE_DOUBLE, label=1)
    return file


def proto_class(name="shop.Click"):
    """The class that a producer has of `proto_file`."""
    pool = DescriptorPool()
    common, file = common_file(), proto_file()
    common.name = "common.proto"
    file.dependency.remove("confluent/meta.proto")
    for one in (common, file):
        if one is file:
            pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
        pool.Add(one)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def add_proto(registry, number):
    registry.refer("common-value", 3, common_file(), "PROTOBUF")
    return registry.add(number, proto_file(), "PROTOBUF", [("common.proto", "common-value", 3)])


def proto(number, message, indexes=b"\x02\x02"):
    """A value as Protobuf's serializer writes it. indexes: those of the second type of the file."""
    return framed(number, indexes + message.SerializeToString())
