"""The examination of one worker of a cluster, and of its links to peers."""

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
PROBE_DEADLINE_S = 120.0  # includes waiting for other probes of the same worker
NUM_CLOCK_READINGS = 5


@dataclass(frozen=True, slots=True)
class ExaminedWorker:
    """A worker's description, findings and package versions."""

    address: str
    description: worker_pb2.WorkerDescription
    findings: Sequence[Finding]
    versions: Mapping[str, str]  # empty: the worker does not serve the doctor

    @property
    def name(self) -> str:
        """The worker id."""
        return self.description.worker_id

    @property
    def role(self) -> str:
        """The role in lower case, such as decode."""
        return worker_pb2.WorkerRole.Name(self.description.role).removeprefix("WORKER_ROLE_").lower()


async def examine_worker(address: str, channels: Channels) -> ExaminedWorker | Finding:
    """Return a worker's examination of itself; a finding if the worker does not respond."""
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
        return ExaminedWorker(address, description, [_call_failed(address, error)], {})
    findings = [
        ok("worker", f"{description.model} at {address}, transport {description.transport}, {_blocks(description)}"),
        clock,
        *(finding_from_proto(finding) for finding in report.findings),
    ]
    return ExaminedWorker(address, description, findings, dict(report.versions))


async def probe_link(reader: ExaminedWorker, owner: ExaminedWorker, channels: Channels) -> list[Link] | Finding:
    """Return measurements of `reader` reading from `owner`'s pool; a finding if the call failed."""
    doctor: doctor_pb2_grpc.DoctorAsyncStub = doctor_pb2_grpc.DoctorStub(channels.get(reader.address))
    request = doctor_pb2.ProbeRequest(address=owner.address)
    try:
        report = await doctor.Probe(request, timeout=PROBE_DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        return _call_failed(reader.address, error)
    return [link_from_proto(link) for link in report.links]


async def _read_clock(doctor: "doctor_pb2_grpc.DoctorAsyncStub") -> ClockReading:
    sent_s = time.time()
    response = await doctor.ReadClock(doctor_pb2.ReadClockRequest(), timeout=CALL_DEADLINE_S)
    return ClockReading(sent_s, response.time_s, time.time())


def _blocks(description: worker_pb2.WorkerDescription) -> str:
    pool = description.pool
    return f"{pool.num_blocks} blocks of {description.block_size} tokens and {pool.block_bytes / 1024:g} KiB"


def _unreachable(address: str, error: grpc.aio.AioRpcError) -> Finding:
    return failure(
        "worker-unreachable",
        f"{address} does not respond to this machine: {error.code().name}: {error.details()}",
        "if it runs, run baton doctor on a machine that reaches it (127.0.0.1 is reachable only from its own machine, "
        "unix:PATH only by its own user), with --tls-cert, --tls-key and --tls-ca if workers use mutual TLS",
    )


def _call_failed(address: str, error: grpc.aio.AioRpcError) -> Finding:
    if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
        return warning(
            "peer-unknown",
            f"the worker at {address} reads only from workers that it knows: {error.details()}",
            "use a router that this worker reports to, and check that its registry has both workers",
        )
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return warning(
            "doctor-not-served",
            f"the worker at {address} does not serve the doctor: it is simulated, or an older version",
            "nothing was measured there; upgrade the worker to this version",
        )
    return _unreachable(address, error)
