#!/usr/bin/env python3
"""Writes records with Confluent's serializers, for the test schemas/tests/serializers.rs.

    pip install 'confluent-kafka[avro,json,protobuf,schemaregistry]' grpcio-tools
    make.py SEED RECORDS FILE

RECORDS is the number for each format and each place of the schema's id. The first line of the file has the answers of the
registry by path, each other line a record: the format and the place of the id, the client, headers and value in hex.
"""

import base64
import json
import random
import string
import sys
import tempfile
import uuid
from pathlib import Path

from confluent_kafka.schema_registry import header_schema_id_serializer, prefix_schema_id_serializer
from confluent_kafka.schema_registry._sync.mock_schema_registry_client import MockSchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

SEED, RECORDS, FILE = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
SCHEMAS = min(40, max(1, RECORDS // 4))
chance = random.Random(SEED)
# The registry's GUIDs come from the seed, too.
uuid.uuid4 = lambda: uuid.UUID(int=chance.getrandbits(128))
registry = MockSchemaRegistryClient({"url": "mock://"})
PROTO_TEXTS = {}


def text(longest=40):
    letters = string.ascii_letters + string.digits + " -_.\"\\/{}äß€𝄞"
    return "".join(chance.choices(letters, k=chance.randint(1, longest)))


def number(bits):
    return chance.getrandbits(chance.randint(1, bits - 1)) * chance.choice([1, -1])


# ## Avro: each kind is a schema and a function that makes a value


def avro_kind(names, depth):
    kind = chance.choice(["null", "boolean", "int", "long", "float", "double", "bytes", "string", "enum", "fixed",
                          *(["array", "map", "union", "record"] if depth else [])])
    name = f"T{next(names)}"
    if kind == "enum":
        symbols = [f"S{n}" for n in range(chance.randint(1, 9))]
        return {"type": "enum", "name": name, "symbols": symbols}, lambda: chance.choice(symbols)
    if kind == "fixed":
        size = chance.randint(0, 20)
        return {"type": "fixed", "name": name, "size": size}, lambda: chance.randbytes(size)
    if kind in ("array", "map"):
        inner, value = avro_kind(names, depth - 1)
        if kind == "array":
            return {"type": "array", "items": inner}, lambda: [value() for _ in range(chance.randint(0, 4))]
        return {"type": "map", "values": inner}, lambda: {text(5): value() for _ in range(chance.randint(0, 4))}
    if kind == "union":
        inner, value = avro_kind(names, 0)
        while inner == "null":
            inner, value = avro_kind(names, 0)
        return ["null", inner], lambda: chance.choice([None, value()])
    if kind == "record":
        return avro_record(names, depth - 1, name, [])
    return kind, {
        "null": lambda: None, "boolean": lambda: chance.random() < 0.5, "int": lambda: number(32),
        "long": lambda: number(64), "float": lambda: 0.5, "double": chance.random,
        "bytes": lambda: chance.randbytes(chance.randint(0, 9)), "string": text,
    }[kind]


def avro_record(names, depth, name, more):
    fields = [(f"f{n}", *avro_kind(names, depth)) for n in range(chance.randint(0, 5))] + more
    chance.shuffle(fields)
    schema = {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind, _ in fields]}
    return schema, lambda: {field: value() for field, _, value in fields}


def avro(n, place):
    names = iter(range(1000))
    kind = chance.choice(["string", "long", ["null", "string"], {"type": "string", "logicalType": "uuid"}])
    client = avro_record(names, 2, "Client", [("id", kind, lambda: current)])
    schema, value = avro_record(names, 2, "Loan", [("client", *client)])
    schema["namespace"] = "bank.loans"
    serializer = AvroSerializer(registry, json.dumps(schema), conf={"schema.id.serializer": place})

    def record():
        nonlocal current
        current = number(64) if kind == "long" else text()
        return serializer, value(), str(current)

    current = None
    return record


# ## Protobuf: protoc compiles the text that the registry has


SCALARS = {"string": text, "int32": lambda: number(32), "int64": lambda: number(64), "uint64": lambda: abs(number(64)),
           "sint32": lambda: number(32), "sint64": lambda: number(64), "fixed32": lambda: abs(number(32)),
           "sfixed64": lambda: number(64), "bool": lambda: True, "double": chance.random,
           "bytes": lambda: chance.randbytes(5)}


def protobuf(n, place):
    kind = chance.choice(["string", "int32", "int64", "uint64", "sint64", "fixed32", "sfixed64", "Kind"])
    numbers = chance.sample([*range(1, 40), 1000, 20000, 536870911], 8)
    others = [(f"f{at}", chance.choice(list(SCALARS)), chance.choice(["", "", "repeated ", "optional "]))
              for at in range(4)]
    fields = [f"{label}{of} {name} = {at};" for (name, of, label), at in zip(others, numbers)]
    chance.shuffle(fields)
    in_oneof = chance.random() < 0.5
    id_field = f"{kind} id = {numbers[4]};"
    id_field = f"oneof who {{ {id_field} string mail = {numbers[5]}; }}" if in_oneof else id_field
    client = f"message Client {{ {' '.join(fields)} enum Kind {{ NONE = 0; HOME = 1; CAR = 5; }} {id_field} }}"
    package, imported = f"loans{n}{place.__name__[0]}", chance.random() < 0.5
    base, top = f"base{package}.proto", f"{package}.proto"
    head = f'syntax = "proto3";\n// The loans of a bank.\npackage {package};\n'
    PROTO_TEXTS[base] = f"{head}{client}\n"
    client_type = "Client" if imported else "Outer.Client"
    PROTO_TEXTS[top] = "".join([
        head, f'import "{base}";\n' if imported else "", "message First { string name = 1; }\n",
        "message Outer {\n", "" if imported else f"  {client}\n",
        f"  message Loan {{ map<string, int64> sums = 3; {client_type} client = {chance.choice([1, 2, 100])}; }}\n}}\n"])
    with tempfile.TemporaryDirectory() as folder:
        files = [base, top] if imported else [top]
        for file in files:
            Path(folder, file).write_text(PROTO_TEXTS[file])
        assert protoc.main(["", f"-I{folder}", f"--descriptor_set_out={folder}/set", *files]) == 0
        described = descriptor_pb2.FileDescriptorSet.FromString(Path(folder, "set").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in sorted(described.file, key=lambda file: file.name == top):
        pool.Add(file)
    loan = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Outer.Loan"))
    serializer = ProtobufSerializer(loan, registry, conf={"schema.id.serializer": place})

    def record():
        value = loan(sums={text(4): number(64) for _ in range(chance.randint(0, 3))})
        for name, of, label in others:
            if label == "repeated ":
                getattr(value.client, name).extend(SCALARS[of]() for _ in range(3))
            elif chance.random() < 0.7:
                setattr(value.client, name, SCALARS[of]())
        if kind == "Kind":
            client = chance.choice(["HOME", "CAR"])
            value.client.id = {"HOME": 1, "CAR": 5}[client]
        else:
            # The id 0 is not written.
            client = SCALARS[kind]() or 1
            value.client.id = client
        return serializer, value, str(client)

    return record


# ## JSON


def json_schema(n, place):
    schema = {"title": f"Loan{n}", "type": "object", "properties": {"client": {"type": "object"}}}
    serializer = JSONSerializer(json.dumps(schema), registry, conf={"schema.id.serializer": place})

    def any_value(depth):
        return chance.choice([None, True, number(64), chance.random(), text(), *([
            [any_value(depth - 1) for _ in range(3)], {text(3): any_value(depth - 1) for _ in range(3)}] * 2
            if depth else [])])

    def record():
        client = chance.choice([text(), number(64)])
        fields = [("id", client), *[(f"f{at}", any_value(2)) for at in range(3)]]
        chance.shuffle(fields)
        value = [("client", dict(fields)), *[(f"g{at}", any_value(3)) for at in range(3)]]
        chance.shuffle(value)
        return serializer, dict(value), str(client)

    return record


def stored(registered):
    """Returns the registry's answer about a schema. It has Protobuf as text, which the serializer sends compiled."""
    schema = registered.schema
    answer = {"schema": schema.schema_str, "guid": registered.guid, "references": [
        {"name": it.name, "subject": it.subject, "version": it.version} for it in schema.references or []]}
    if schema.schema_type == "PROTOBUF":
        described = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(schema.schema_str))
        answer["schema"] = PROTO_TEXTS[described.name]
    if schema.schema_type != "AVRO":
        answer["schemaType"] = schema.schema_type
    return answer


records = []
for form in (avro, protobuf, json_schema):
    for place in (prefix_schema_id_serializer, header_schema_id_serializer):
        kinds = [form(n, place) for n in range(SCHEMAS)]
        for at in range(RECORDS):
            n = at % SCHEMAS
            serializer, value, client = kinds[n]()
            context = SerializationContext(f"{form.__name__}-{place.__name__}-{n}", MessageField.VALUE, [])
            written = serializer(value, context)
            headers = [[name, header.hex()] for name, header in context.headers]
            records.append([f"{form.__name__} {place.__name__.split('_')[0]}", client, headers, written.hex()])

answers = {}
for registered in registry._store.schema_id_index.values():
    for path in (f"/schemas/ids/{registered.schema_id}", f"/schemas/guids/{registered.guid}",
                 f"/subjects/{registered.subject}/versions/{registered.version}"):
        answers[path] = stored(registered)
with open(FILE, "w", encoding="utf-8") as file:
    for line in [answers, *records]:
        file.write(json.dumps(line) + "\n")
print(f"seed {SEED}: {len(records)} records, {len(registry._store.schema_id_index)} schemas")
