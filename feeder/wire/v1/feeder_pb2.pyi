from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_LZ4: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]

class SlotStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SLOT_STATUS_OWN: _ClassVar[SlotStatus]
    SLOT_STATUS_SUBSTITUTE: _ClassVar[SlotStatus]
    SLOT_STATUS_BAD: _ClassVar[SlotStatus]
    SLOT_STATUS_PADDING: _ClassVar[SlotStatus]

class FailureKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FAILURE_KIND_UNSPECIFIED: _ClassVar[FailureKind]
    FAILURE_KIND_BAD_RECORD: _ClassVar[FailureKind]
    FAILURE_KIND_STORAGE: _ClassVar[FailureKind]
    FAILURE_KIND_INVALID: _ClassVar[FailureKind]
    FAILURE_KIND_INTERNAL: _ClassVar[FailureKind]
COMPRESSION_NONE: Compression
COMPRESSION_LZ4: Compression
COMPRESSION_ZSTD: Compression
SLOT_STATUS_OWN: SlotStatus
SLOT_STATUS_SUBSTITUTE: SlotStatus
SLOT_STATUS_BAD: SlotStatus
SLOT_STATUS_PADDING: SlotStatus
FAILURE_KIND_UNSPECIFIED: FailureKind
FAILURE_KIND_BAD_RECORD: FailureKind
FAILURE_KIND_STORAGE: FailureKind
FAILURE_KIND_INVALID: FailureKind
FAILURE_KIND_INTERNAL: FailureKind

class ArenaOffer(_message.Message):
    __slots__ = ("protocol", "buffers", "buffer_bytes")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    BUFFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    buffers: int
    buffer_bytes: int
    def __init__(self, protocol: _Optional[int] = ..., buffers: _Optional[int] = ..., buffer_bytes: _Optional[int] = ...) -> None: ...

class ArenaReply(_message.Message):
    __slots__ = ("arena", "refusal")
    ARENA_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    arena: bytes
    refusal: str
    def __init__(self, arena: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("version", "worker_id", "threads", "decoder", "pixel_fingerprint", "datasets", "draining", "live_streams", "max_streams", "counters", "uptime_s", "quarantine", "cache", "side_socket", "encoded_cache", "kept_bytes", "pixel_digests", "stages", "streams")
    class PixelDigestsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    DECODER_FIELD_NUMBER: _ClassVar[int]
    PIXEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DATASETS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIVE_STREAMS_FIELD_NUMBER: _ClassVar[int]
    MAX_STREAMS_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    QUARANTINE_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    SIDE_SOCKET_FIELD_NUMBER: _ClassVar[int]
    ENCODED_CACHE_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PIXEL_DIGESTS_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    version: str
    worker_id: str
    threads: int
    decoder: str
    pixel_fingerprint: str
    datasets: _containers.RepeatedCompositeFieldContainer[DatasetInfo]
    draining: bool
    live_streams: int
    max_streams: int
    counters: Counters
    uptime_s: float
    quarantine: _containers.RepeatedCompositeFieldContainer[BadRecordInfo]
    cache: CacheInfo
    side_socket: str
    encoded_cache: CacheInfo
    kept_bytes: int
    pixel_digests: _containers.ScalarMap[str, str]
    stages: _containers.RepeatedCompositeFieldContainer[StageInfo]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    def __init__(self, version: _Optional[str] = ..., worker_id: _Optional[str] = ..., threads: _Optional[int] = ..., decoder: _Optional[str] = ..., pixel_fingerprint: _Optional[str] = ..., datasets: _Optional[_Iterable[_Union[DatasetInfo, _Mapping]]] = ..., draining: bool = ..., live_streams: _Optional[int] = ..., max_streams: _Optional[int] = ..., counters: _Optional[_Union[Counters, _Mapping]] = ..., uptime_s: _Optional[float] = ..., quarantine: _Optional[_Iterable[_Union[BadRecordInfo, _Mapping]]] = ..., cache: _Optional[_Union[CacheInfo, _Mapping]] = ..., side_socket: _Optional[str] = ..., encoded_cache: _Optional[_Union[CacheInfo, _Mapping]] = ..., kept_bytes: _Optional[int] = ..., pixel_digests: _Optional[_Mapping[str, str]] = ..., stages: _Optional[_Iterable[_Union[StageInfo, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ...) -> None: ...

class StageInfo(_message.Message):
    __slots__ = ("name", "chunks", "total_s", "bounds_s", "buckets", "here")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_S_FIELD_NUMBER: _ClassVar[int]
    BUCKETS_FIELD_NUMBER: _ClassVar[int]
    HERE_FIELD_NUMBER: _ClassVar[int]
    name: str
    chunks: int
    total_s: float
    bounds_s: _containers.RepeatedScalarFieldContainer[float]
    buckets: _containers.RepeatedScalarFieldContainer[int]
    here: int
    def __init__(self, name: _Optional[str] = ..., chunks: _Optional[int] = ..., total_s: _Optional[float] = ..., bounds_s: _Optional[_Iterable[float]] = ..., buckets: _Optional[_Iterable[int]] = ..., here: _Optional[int] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("job", "session", "consumer_index", "consumer_count", "peer", "arena", "spec", "chunks", "images", "owed", "epoch", "taken", "age_s", "report", "report_age_s", "unsent_s", "paced_s")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_COUNT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    OWED_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    REPORT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    UNSENT_S_FIELD_NUMBER: _ClassVar[int]
    PACED_S_FIELD_NUMBER: _ClassVar[int]
    job: str
    session: str
    consumer_index: int
    consumer_count: int
    peer: str
    arena: bool
    spec: Spec
    chunks: int
    images: int
    owed: int
    epoch: int
    taken: int
    age_s: float
    report: ClientReport
    report_age_s: float
    unsent_s: float
    paced_s: float
    def __init__(self, job: _Optional[str] = ..., session: _Optional[str] = ..., consumer_index: _Optional[int] = ..., consumer_count: _Optional[int] = ..., peer: _Optional[str] = ..., arena: bool = ..., spec: _Optional[_Union[Spec, _Mapping]] = ..., chunks: _Optional[int] = ..., images: _Optional[int] = ..., owed: _Optional[int] = ..., epoch: _Optional[int] = ..., taken: _Optional[int] = ..., age_s: _Optional[float] = ..., report: _Optional[_Union[ClientReport, _Mapping]] = ..., report_age_s: _Optional[float] = ..., unsent_s: _Optional[float] = ..., paced_s: _Optional[float] = ...) -> None: ...

class ClientReport(_message.Message):
    __slots__ = ("steps", "step_s", "wait_s", "land_s", "ready", "prefetch", "images", "masked", "substituted", "hedges", "retries", "workers", "bytes_copied")
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    LAND_S_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    MASKED_FIELD_NUMBER: _ClassVar[int]
    SUBSTITUTED_FIELD_NUMBER: _ClassVar[int]
    HEDGES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_COPIED_FIELD_NUMBER: _ClassVar[int]
    steps: int
    step_s: float
    wait_s: float
    land_s: float
    ready: int
    prefetch: int
    images: int
    masked: int
    substituted: int
    hedges: int
    retries: int
    workers: int
    bytes_copied: int
    def __init__(self, steps: _Optional[int] = ..., step_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., land_s: _Optional[float] = ..., ready: _Optional[int] = ..., prefetch: _Optional[int] = ..., images: _Optional[int] = ..., masked: _Optional[int] = ..., substituted: _Optional[int] = ..., hedges: _Optional[int] = ..., retries: _Optional[int] = ..., workers: _Optional[int] = ..., bytes_copied: _Optional[int] = ...) -> None: ...

class CacheInfo(_message.Message):
    __slots__ = ("hits", "misses", "filled", "dropped", "bytes", "segments", "budget_bytes", "full")
    HITS_FIELD_NUMBER: _ClassVar[int]
    MISSES_FIELD_NUMBER: _ClassVar[int]
    FILLED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    hits: int
    misses: int
    filled: int
    dropped: int
    bytes: int
    segments: int
    budget_bytes: int
    full: bool
    def __init__(self, hits: _Optional[int] = ..., misses: _Optional[int] = ..., filled: _Optional[int] = ..., dropped: _Optional[int] = ..., bytes: _Optional[int] = ..., segments: _Optional[int] = ..., budget_bytes: _Optional[int] = ..., full: bool = ...) -> None: ...

class DatasetInfo(_message.Message):
    __slots__ = ("name", "records", "shards", "fingerprint", "bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: int
    shards: int
    fingerprint: str
    bytes: int
    def __init__(self, name: _Optional[str] = ..., records: _Optional[int] = ..., shards: _Optional[int] = ..., fingerprint: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...

class Counters(_message.Message):
    __slots__ = ("images", "chunks", "bytes_read", "bytes_sent", "bad_records", "storage_retries", "read_s", "decode_s", "idle_s", "seek_used", "seek_learned", "seek_refused", "seek_torn", "seek_dropped", "bytes_placed", "store_requests", "store_merged", "images_shared", "bytes_shared")
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_READ_FIELD_NUMBER: _ClassVar[int]
    BYTES_SENT_FIELD_NUMBER: _ClassVar[int]
    BAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    STORAGE_RETRIES_FIELD_NUMBER: _ClassVar[int]
    READ_S_FIELD_NUMBER: _ClassVar[int]
    DECODE_S_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    SEEK_USED_FIELD_NUMBER: _ClassVar[int]
    SEEK_LEARNED_FIELD_NUMBER: _ClassVar[int]
    SEEK_REFUSED_FIELD_NUMBER: _ClassVar[int]
    SEEK_TORN_FIELD_NUMBER: _ClassVar[int]
    SEEK_DROPPED_FIELD_NUMBER: _ClassVar[int]
    BYTES_PLACED_FIELD_NUMBER: _ClassVar[int]
    STORE_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    STORE_MERGED_FIELD_NUMBER: _ClassVar[int]
    IMAGES_SHARED_FIELD_NUMBER: _ClassVar[int]
    BYTES_SHARED_FIELD_NUMBER: _ClassVar[int]
    images: int
    chunks: int
    bytes_read: int
    bytes_sent: int
    bad_records: int
    storage_retries: int
    read_s: float
    decode_s: float
    idle_s: float
    seek_used: int
    seek_learned: int
    seek_refused: int
    seek_torn: int
    seek_dropped: int
    bytes_placed: int
    store_requests: int
    store_merged: int
    images_shared: int
    bytes_shared: int
    def __init__(self, images: _Optional[int] = ..., chunks: _Optional[int] = ..., bytes_read: _Optional[int] = ..., bytes_sent: _Optional[int] = ..., bad_records: _Optional[int] = ..., storage_retries: _Optional[int] = ..., read_s: _Optional[float] = ..., decode_s: _Optional[float] = ..., idle_s: _Optional[float] = ..., seek_used: _Optional[int] = ..., seek_learned: _Optional[int] = ..., seek_refused: _Optional[int] = ..., seek_torn: _Optional[int] = ..., seek_dropped: _Optional[int] = ..., bytes_placed: _Optional[int] = ..., store_requests: _Optional[int] = ..., store_merged: _Optional[int] = ..., images_shared: _Optional[int] = ..., bytes_shared: _Optional[int] = ...) -> None: ...

class FeedRequest(_message.Message):
    __slots__ = ("open", "chunk", "report", "join")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    open: Open
    chunk: ChunkRequest
    report: ClientReport
    join: Join
    def __init__(self, open: _Optional[_Union[Open, _Mapping]] = ..., chunk: _Optional[_Union[ChunkRequest, _Mapping]] = ..., report: _Optional[_Union[ClientReport, _Mapping]] = ..., join: _Optional[_Union[Join, _Mapping]] = ...) -> None: ...

class Join(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("protocol", "session", "job", "consumer_index", "consumer_count", "spec", "fingerprint", "pixel_fingerprint", "arena")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_COUNT_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    PIXEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    session: str
    job: str
    consumer_index: int
    consumer_count: int
    spec: Spec
    fingerprint: str
    pixel_fingerprint: str
    arena: bytes
    def __init__(self, protocol: _Optional[int] = ..., session: _Optional[str] = ..., job: _Optional[str] = ..., consumer_index: _Optional[int] = ..., consumer_count: _Optional[int] = ..., spec: _Optional[_Union[Spec, _Mapping]] = ..., fingerprint: _Optional[str] = ..., pixel_fingerprint: _Optional[str] = ..., arena: _Optional[bytes] = ...) -> None: ...

class Spec(_message.Message):
    __slots__ = ("dataset", "seed", "global_batch", "lanes", "image_size", "augment", "sampler", "resample", "antialias", "reduce", "output", "shuffle", "remainder", "on_bad")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_BATCH_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    IMAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    AUGMENT_FIELD_NUMBER: _ClassVar[int]
    SAMPLER_FIELD_NUMBER: _ClassVar[int]
    RESAMPLE_FIELD_NUMBER: _ClassVar[int]
    ANTIALIAS_FIELD_NUMBER: _ClassVar[int]
    REDUCE_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    REMAINDER_FIELD_NUMBER: _ClassVar[int]
    ON_BAD_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    seed: int
    global_batch: int
    lanes: int
    image_size: int
    augment: str
    sampler: str
    resample: str
    antialias: bool
    reduce: str
    output: str
    shuffle: bool
    remainder: str
    on_bad: str
    def __init__(self, dataset: _Optional[str] = ..., seed: _Optional[int] = ..., global_batch: _Optional[int] = ..., lanes: _Optional[int] = ..., image_size: _Optional[int] = ..., augment: _Optional[str] = ..., sampler: _Optional[str] = ..., resample: _Optional[str] = ..., antialias: bool = ..., reduce: _Optional[str] = ..., output: _Optional[str] = ..., shuffle: bool = ..., remainder: _Optional[str] = ..., on_bad: _Optional[str] = ...) -> None: ...

class ChunkRequest(_message.Message):
    __slots__ = ("id", "epoch", "taken", "slots", "destination", "compression", "trace")
    ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    id: int
    epoch: int
    taken: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    destination: Destination
    compression: Compression
    trace: str
    def __init__(self, id: _Optional[int] = ..., epoch: _Optional[int] = ..., taken: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., destination: _Optional[_Union[Destination, _Mapping]] = ..., compression: _Optional[_Union[Compression, str]] = ..., trace: _Optional[str] = ...) -> None: ...

class Destination(_message.Message):
    __slots__ = ("buffer", "offset")
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    offset: int
    def __init__(self, buffer: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class FeedReply(_message.Message):
    __slots__ = ("opened", "chunk", "failed", "draining")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    opened: Opened
    chunk: Chunk
    failed: ChunkFailed
    draining: Draining
    def __init__(self, opened: _Optional[_Union[Opened, _Mapping]] = ..., chunk: _Optional[_Union[Chunk, _Mapping]] = ..., failed: _Optional[_Union[ChunkFailed, _Mapping]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("worker_id", "max_outstanding", "arena", "compressions", "reports", "join")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTSTANDING_FIELD_NUMBER: _ClassVar[int]
    ARENA_FIELD_NUMBER: _ClassVar[int]
    COMPRESSIONS_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    max_outstanding: int
    arena: bool
    compressions: _containers.RepeatedScalarFieldContainer[Compression]
    reports: bool
    join: bytes
    def __init__(self, worker_id: _Optional[str] = ..., max_outstanding: _Optional[int] = ..., arena: bool = ..., compressions: _Optional[_Iterable[_Union[Compression, str]]] = ..., reports: bool = ..., join: _Optional[bytes] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("id", "records", "labels", "status", "bad", "placed", "compression", "packing_s", "pixels")
    ID_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    PLACED_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    PACKING_S_FIELD_NUMBER: _ClassVar[int]
    PIXELS_FIELD_NUMBER: _ClassVar[int]
    id: int
    records: _containers.RepeatedScalarFieldContainer[int]
    labels: _containers.RepeatedScalarFieldContainer[int]
    status: bytes
    bad: _containers.RepeatedCompositeFieldContainer[BadRecordInfo]
    placed: bool
    compression: Compression
    packing_s: float
    pixels: bytes
    def __init__(self, id: _Optional[int] = ..., records: _Optional[_Iterable[int]] = ..., labels: _Optional[_Iterable[int]] = ..., status: _Optional[bytes] = ..., bad: _Optional[_Iterable[_Union[BadRecordInfo, _Mapping]]] = ..., placed: bool = ..., compression: _Optional[_Union[Compression, str]] = ..., packing_s: _Optional[float] = ..., pixels: _Optional[bytes] = ...) -> None: ...

class BadRecordInfo(_message.Message):
    __slots__ = ("dataset", "record", "shard", "index", "reason")
    DATASET_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    dataset: str
    record: int
    shard: str
    index: int
    reason: str
    def __init__(self, dataset: _Optional[str] = ..., record: _Optional[int] = ..., shard: _Optional[str] = ..., index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class ChunkFailed(_message.Message):
    __slots__ = ("id", "kind", "message", "bad")
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    BAD_FIELD_NUMBER: _ClassVar[int]
    id: int
    kind: FailureKind
    message: str
    bad: BadRecordInfo
    def __init__(self, id: _Optional[int] = ..., kind: _Optional[_Union[FailureKind, str]] = ..., message: _Optional[str] = ..., bad: _Optional[_Union[BadRecordInfo, _Mapping]] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
