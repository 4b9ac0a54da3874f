"""Kafka's record batch, format 2: the bytes of a log entry.

It has the header, the CRC, the framing of records, and the rules by which batches follow each other. It does
not deal with files, sockets, topics or schemas.
"""

from millrace.records.control import MIN_CONTROL_BYTES as MIN_CONTROL_BYTES
from millrace.records.control import control_batch as control_batch
from millrace.records.control import control_batch_of_size as control_batch_of_size
from millrace.records.control import filler_after as filler_after
from millrace.records.control import filler_size as filler_size
from millrace.records.cursor import Cursor as Cursor
from millrace.records.header import CONTROL_BIT as CONTROL_BIT
from millrace.records.header import HEADER as HEADER
from millrace.records.header import HEADER_BYTES as HEADER_BYTES
from millrace.records.header import LENGTH_OVERHEAD as LENGTH_OVERHEAD
from millrace.records.header import MAGIC as MAGIC
from millrace.records.header import TIMESTAMP_TYPE_BIT as TIMESTAMP_TYPE_BIT
from millrace.records.header import TRANSACTIONAL_BIT as TRANSACTIONAL_BIT
from millrace.records.header import BatchHeader as BatchHeader
from millrace.records.header import batch_crc as batch_crc
from millrace.records.header import check_produced as check_produced
from millrace.records.header import split_batches as split_batches
from millrace.records.messages import Message as Message
from millrace.records.messages import Record as Record
from millrace.records.messages import build_batch as build_batch
from millrace.records.messages import iter_records as iter_records
from millrace.records.messages import read_varint as read_varint
