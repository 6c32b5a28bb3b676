"""NVRx's side of its node health socket: the published protocol, restated, and a client that asks as NVRx does.

Source  NVIDIA/nvidia-resiliency-ext, src/nvidia_resiliency_ext/shared_utils/proto/nvhcd.proto, and NodeHealthCheck in
        shared_utils/health_check.py: what it sends, how long it waits, and what it takes for healthy
"""

import json
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
LIMIT = 60.0  # seconds; NodeHealthCheck's request_timeout_sec

_STRING, _BOOL, _INT32 = (
    descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
)


def _messages() -> tuple[Any, Any]:
    """The classes of request and response, made from a description of the file. Any: protobuf makes them as it runs."""
    file = descriptor_pb2.FileDescriptorProto(name="nvhcd.proto", package="nvhcd", syntax="proto3")
    request = file.message_type.add(name="HealthCheckRequest")
    repeated = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    request.field.add(name="args", number=1, type=_STRING, label=repeated)
    response = file.message_type.add(name="HealthCheckResponse")
    fields = (("success", _BOOL), ("exit_code", _INT32), ("output", _STRING), ("error", _STRING))
    for number, (name, kind) in enumerate(fields, start=1):
        optional = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        response.field.add(name=name, number=number, type=kind, label=optional)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"nvhcd.{name}"))
        for name in ("HealthCheckRequest", "HealthCheckResponse")
    ]
    return made[0], made[1]


Request, Response = _messages()


def asked(socket: str, *args: str, limit: float = LIMIT) -> Any:
    """The answer, over a channel of its own as NVRx has one for each question.

    Raises  grpc.RpcError
    """
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        call = channel.unary_unary(
            METHOD, request_serializer=Request.SerializeToString, response_deserializer=Response.FromString
        )
        return call(Request(args=args or ("--no-slurm",)), timeout=limit)


def takes_the_node(response: Any) -> bool:
    """What NodeHealthCheck makes of an answer: healthy only with `success` and a `fail_count` of 0 in its JSON."""
    if not response.success:
        return False
    try:
        told = json.loads(response.output)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("fail_count") == 0
