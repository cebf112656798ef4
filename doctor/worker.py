"""One worker of a cluster, asked about itself and about its peers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import grpc

from baton.doctor.clock import ClockReading, best, check_clock
from baton.doctor.finding import Finding, failure, ok, warning
from baton.doctor.link import Link
from baton.doctor.messages import finding_from_proto, link_from_proto
from baton.protos import doctor_pb2, doctor_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton.rpc.peers import Channels

CALL_DEADLINE_S = 10.0
EXAMINE_DEADLINE_S = 60.0
PROBE_DEADLINE_S = 120.0  # other probes of the same worker may come first
NUM_CLOCK_READINGS = 5


@dataclass(frozen=True, slots=True)
class ExaminedWorker:
    """What a worker said."""

    address: str
    description: worker_pb2.WorkerDescription
    findings: Sequence[Finding]
    versions: Mapping[str, str]  # empty: it has no doctor

    @property
    def name(self) -> str:
        """Its id."""
        return self.description.worker_id

    @property
    def role(self) -> str:
        """What it is for."""
        return worker_pb2.WorkerRole.Name(self.description.role).removeprefix("WORKER_ROLE_").lower()


async def examine_worker(address: str, channels: Channels) -> ExaminedWorker | Finding:
    """Asks a worker for all that concerns it alone; a finding if it does not answer."""
    channel = channels.get(address)
    try:
        description = await worker_pb2_grpc.WorkerStub(channel).Describe(
            worker_pb2.DescribeRequest(), timeout=CALL_DEADLINE_S
        )
    except grpc.aio.AioRpcError as error:
        return _unreachable(address, error)
    doctor: doctor_pb2_grpc.DoctorAsyncStub = doctor_pb2_grpc.DoctorStub(channel)
    try:
        clock = check_clock(best([await _read_clock(doctor) for _ in range(NUM_CLOCK_READINGS)]))
        report = await doctor.Examine(doctor_pb2.ExamineRequest(), timeout=EXAMINE_DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        return ExaminedWorker(address, description, [_unasked(address, error)], {})
    findings = [
        ok("worker", f"{description.model} at {address}, transport {description.transport}, {_blocks(description)}"),
        clock,
        *(finding_from_proto(finding) for finding in report.findings),
    ]
    return ExaminedWorker(address, description, findings, dict(report.versions))


async def probe_link(reader: ExaminedWorker, owner: ExaminedWorker, channels: Channels) -> list[Link] | Finding:
    """Has one worker read from the other's pool; a finding if it could not be asked."""
    doctor: doctor_pb2_grpc.DoctorAsyncStub = doctor_pb2_grpc.DoctorStub(channels.get(reader.address))
    request = doctor_pb2.ProbeRequest(address=owner.address)
    try:
        report = await doctor.Probe(request, timeout=PROBE_DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        return _unasked(reader.address, error)
    return [link_from_proto(link) for link in report.links]


async def _read_clock(doctor: "doctor_pb2_grpc.DoctorAsyncStub") -> ClockReading:
    sent_s = time.time()
    answer = await doctor.ReadClock(doctor_pb2.ReadClockRequest(), timeout=CALL_DEADLINE_S)
    return ClockReading(sent_s, answer.time_s, time.time())


def _blocks(description: worker_pb2.WorkerDescription) -> str:
    pool = description.pool
    return f"{pool.num_blocks} blocks of {description.block_size} tokens and {pool.block_bytes / 1024:g} KiB"


def _unreachable(address: str, error: grpc.aio.AioRpcError) -> Finding:
    return failure(
        "worker-unreachable",
        f"{address} does not answer this machine: {error.code().name}: {error.details()}",
        "if it runs, examine from a machine that reaches it (one at 127.0.0.1 answers its own machine alone, one at "
        "unix:PATH its own user), and with --tls-cert, --tls-key and --tls-ca if workers speak mutual TLS",
    )


def _unasked(address: str, error: grpc.aio.AioRpcError) -> Finding:
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return warning(
            "peer-unknown",
            f"the worker at {address} does not read from a worker that it does not know: {error.details()}",
            "ask a router that this worker reports to, and see whether its registry has both workers",
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return warning(
            "doctor-not-served",
            f"the worker at {address} has no doctor: it is simulated, or of an older version",
            "nothing could be measured there; bring the worker to this version",
        )
    return _unreachable(address, error)
