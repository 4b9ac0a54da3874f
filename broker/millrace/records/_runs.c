/* The functions of runs.py and content.py, compiled. Those files describe them; cases that are not plain are
 * left to Python.
 *
 * Python's limited API: one build serves every Python from 3.11 on.
 */
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { HEADER_BYTES = 61, LENGTH_OVERHEAD = 12, CRC_START = 21, LAST_CODEC = 4 };
enum { LENGTH_AT = 8, EPOCH_AT = 12, MAGIC_AT = 16, CRC_AT = 17, ATTRIBUTES_AT = 21, DELTA_AT = 23 };
enum { MAX_TIMESTAMP_AT = 35, PRODUCER_ID_AT = 43, PRODUCER_EPOCH_AT = 51, SEQUENCE_AT = 53, COUNT_AT = 57 };
/* Larger batches go to the `checksum` argument, which is faster for them. */
enum { SMALL_BYTES = 2048 };
#define BROKEN INT64_MIN

static int32_t int32_at(const uint8_t *at)
{
    return (int32_t)((uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3]);
}

static int64_t int64_at(const uint8_t *at)
{
    return (int64_t)((uint64_t)(uint32_t)int32_at(at) << 32 | (uint32_t)int32_at(at + 4));
}

static void put_int32(uint8_t *at, uint32_t value)
{
    for (int byte = 3; byte >= 0; byte--, value >>= 8)
        at[byte] = (uint8_t)value;
}

/* CRC-32C by the processor's own instruction; -1 if it has none. */
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("sse4.2"))) static int64_t quick_crc(const uint8_t *at, int64_t size)
{
    if (!__builtin_cpu_supports("sse4.2"))
        return -1;
    uint64_t crc = 0xffffffff, word;
    for (; size >= 8; at += 8, size -= 8) {
        memcpy(&word, at, 8);
        crc = __builtin_ia32_crc32di(crc, word);
    }
    for (; size > 0; at++, size--)
        crc = __builtin_ia32_crc32qi((uint32_t)crc, *at);
    return (uint32_t)~crc;
}
#else
static int64_t quick_crc(const uint8_t *at, int64_t size)
{
    return -1;
}
#endif

static PyObject *slice_of(PyObject *data, int64_t start, int64_t end)
{
    PyObject *from = PyLong_FromLongLong(start), *to = PyLong_FromLongLong(end), *part = NULL;
    PyObject *slice = from && to ? PySlice_New(from, to, NULL) : NULL;
    if (slice)
        part = PyObject_GetItem(data, slice);
    Py_XDECREF(slice);
    Py_XDECREF(from);
    Py_XDECREF(to);
    return part;
}

/* 1 if the bytes from start to end have this CRC, 0 if not, -1 with an exception. */
static int has_crc(PyObject *data, const uint8_t *bytes, int64_t start, int64_t end, uint32_t crc, PyObject *checksum)
{
    int64_t quick = end - start <= SMALL_BYTES ? quick_crc(bytes + start, end - start) : -1;
    if (quick >= 0)
        return (uint32_t)quick == crc;
    PyObject *part = slice_of(data, start, end);
    PyObject *result = part ? PyObject_CallFunctionObjArgs(checksum, part, NULL) : NULL;
    Py_XDECREF(part);
    if (!result)
        return -1;
    unsigned long value = PyLong_AsUnsignedLong(result);
    Py_DECREF(result);
    return PyErr_Occurred() ? -1 : value == crc;
}

/* True if the number stands here as a varint of exactly `width` bytes, the fewest it needs. */
static int states_varint(const uint8_t *at, Py_ssize_t width, uint64_t number)
{
    Py_ssize_t index = 0;
    for (; number >= 0x80; number >>= 7, index++)
        if (index >= width || at[index] != ((number & 0x7f) | 0x80))
            return 0;
    return index + 1 == width && at[index] == number;
}

/* The number in the varint of 32 bits at *at; *at moves after it. BROKEN if there is none. */
static inline int64_t number_at(const uint8_t **at, const uint8_t *end)
{
    uint64_t value = 0;
    if (*at < end && **at < 0x80) {
        value = *(*at)++;
        return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    }
    for (int shift = 0; shift < 35 && *at < end; shift += 7) {
        const uint8_t byte = *(*at)++;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value >> 32 ? BROKEN : (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
    }
    return BROKEN;
}

static inline int skip_timestamp(const uint8_t **at, const uint8_t *end)
{
    for (int index = 0; index < 10 && *at < end; index++) {
        const uint8_t byte = *(*at)++;
        if (byte < 0x80)
            return byte <= 1 || index < 9;
    }
    return 0;
}

static inline int skip_field(const uint8_t **at, const uint8_t *end, int64_t least)
{
    const int64_t size = number_at(at, end);
    if (size < least || size > end - *at)
        return 0;
    *at += size > 0 ? size : 0;
    return 1;
}

static int are_records(const uint8_t *at, const uint8_t *end, int64_t count)
{
    for (int64_t index = 0; index < count; index++) {
        const int64_t size = number_at(&at, end);
        if (size < 1 || size > end - at)
            return 0;
        const uint8_t *record_end = at++ + size;
        if (!skip_timestamp(&at, record_end) || number_at(&at, record_end) != index
            || !skip_field(&at, record_end, -1) || !skip_field(&at, record_end, -1))
            return 0;
        int64_t headers = number_at(&at, record_end);
        for (; headers > 0; headers--)
            if (!skip_field(&at, record_end, 0) || !skip_field(&at, record_end, -1))
                return 0;
        if (headers < 0 || at != record_end)
            return 0;
    }
    return at == end;
}

static PyObject *holds_records(PyObject *module, PyObject *args)
{
    Py_buffer content;
    long long count;
    if (!PyArg_ParseTuple(args, "y*L", &content, &count))
        return NULL;
    const uint8_t *bytes = content.buf;
    const int are_whole = are_records(bytes, bytes + content.len, count);
    PyBuffer_Release(&content);
    return PyBool_FromLong(are_whole);
}

static int append_new(PyObject *list, PyObject *item)
{
    int result = item ? PyList_Append(list, item) : -1;
    Py_XDECREF(item);
    return result;
}

static PyObject *scan(PyObject *module, PyObject *args)
{
    PyObject *data_object, *checksum, *result = NULL;
    Py_buffer data, versions, common, tail;
    Py_ssize_t position, width, largest;
    if (!PyArg_ParseTuple(args, "On(y*y*n)y*nO", &data_object, &position, &versions, &common, &width, &tail, &largest,
                          &checksum))
        return NULL;
    PyObject *ids = PyList_New(0), *batches = PyList_New(0);
    if (PyObject_GetBuffer(data_object, &data, PyBUF_SIMPLE) < 0)
        goto release_arguments;
    const uint8_t *bytes = data.buf;
    const int64_t size_at = 12 + common.len, before = size_at + (tail.len ? width : 4), around = before + tail.len - 4;
    while (ids && batches && position >= 0 && data.len - position >= before + HEADER_BYTES) {
        const uint8_t *request = bytes + position, *batch = request + before;
        const int64_t size = (int64_t)int32_at(request) - around, start = position + before, after = start + size;
        if (size < HEADER_BYTES || size > largest || after + tail.len > data.len || memcmp(request + 4, versions.buf, 4)
            || memcmp(request + 12, common.buf, (size_t)common.len)
            || !(tail.len ? states_varint(request + size_at, width, (uint64_t)size + 1)
                          : int32_at(request + size_at) == size))
            break;
        const int64_t delta = int32_at(batch + DELTA_AT), count = int32_at(batch + COUNT_AT);
        const int16_t attributes = (int16_t)(batch[ATTRIBUTES_AT] << 8 | batch[ATTRIBUTES_AT + 1]);
        if ((int64_t)int32_at(batch + LENGTH_AT) + LENGTH_OVERHEAD != size || batch[MAGIC_AT] != 2 || count <= 0
            || count != delta + 1 || attributes < 0 || attributes > LAST_CODEC
            || memcmp(bytes + after, tail.buf, (size_t)tail.len))
            break;
        int right = has_crc(data_object, bytes, start + CRC_START, after, (uint32_t)int32_at(batch + CRC_AT), checksum);
        if (right == 0 || (right > 0 && attributes == 0 && !are_records(batch + HEADER_BYTES, bytes + after, count)))
            break;
        if (right < 0 || append_new(ids, PyLong_FromLong(int32_at(request + 8))) < 0
            || append_new(batches, slice_of(data_object, start, after)) < 0)
            goto release_data;
        position = after + tail.len;
    }
    if (ids && batches)
        result = Py_BuildValue("OOn", ids, batches, position);
release_data:
    PyBuffer_Release(&data);
release_arguments:
    Py_XDECREF(ids);
    Py_XDECREF(batches);
    PyBuffer_Release(&versions);
    PyBuffer_Release(&common);
    PyBuffer_Release(&tail);
    return result;
}

static PyObject *stamp(PyObject *module, PyObject *args)
{
    PyObject *batches, *stamped;
    Py_ssize_t first;
    long long base, room, marked_room, least, messages = 0, max_timestamp = -1;
    int epoch;
    if (!PyArg_ParseTuple(args, "OnLiLLLO", &batches, &first, &base, &epoch, &room, &marked_room, &least, &stamped))
        return NULL;
    int64_t end = base, next_offset = base;
    PyObject *bases = PyList_New(0);
    const Py_ssize_t count = PySequence_Size(batches);
    for (Py_ssize_t index = first; bases && index < count; index++) {
        Py_buffer batch;
        PyObject *item = PySequence_GetItem(batches, index);
        if (!item)
            goto failed;
        const int is_writable = PyObject_GetBuffer(item, &batch, PyBUF_WRITABLE) == 0;
        Py_DECREF(item);
        if (!is_writable) {
            PyErr_Clear();
            break;
        }
        uint8_t *at = batch.buf;
        const int64_t length = batch.len < HEADER_BYTES ? -1 : int32_at(at + LENGTH_AT), size = length + LENGTH_OVERHEAD;
        const int64_t counted = size > least ? size : least, delta = length < 0 ? 0 : int32_at(at + DELTA_AT);
        const long long producer_id = length < 0 ? -1 : int64_at(at + PRODUCER_ID_AT);
        const int fits = length >= 0 && (producer_id < 0 || stamped != Py_None) && delta < length
                         && end + size <= base + room && counted <= marked_room;
        int producer_epoch = 0, sequence = 0, records = 0;
        if (fits) {
            producer_epoch = (int16_t)(at[PRODUCER_EPOCH_AT] << 8 | at[PRODUCER_EPOCH_AT + 1]);
            sequence = int32_at(at + SEQUENCE_AT);
            records = int32_at(at + COUNT_AT);
            put_int32(at, (uint32_t)((uint64_t)end >> 32));
            put_int32(at + 4, (uint32_t)end);
            put_int32(at + EPOCH_AT, (uint32_t)epoch);
            const int64_t timestamp = int64_at(at + MAX_TIMESTAMP_AT);
            max_timestamp = timestamp > max_timestamp ? timestamp : max_timestamp;
            messages += records;
        }
        PyBuffer_Release(&batch);
        if (!fits)
            break;
        if (append_new(bases, PyLong_FromLongLong(end)) < 0)
            goto failed;
        if (producer_id >= 0
            && append_new(stamped, Py_BuildValue("nLiiLiL", index, producer_id, producer_epoch, sequence,
                                                 (long long)end, records, (long long)(end + size))) < 0)
            goto failed;
        next_offset = end + delta + 1;
        end += size;
        marked_room -= counted;
    }
    if (bases && count >= 0)
        return Py_BuildValue("NLLLLL", bases, (long long)end, marked_room, messages, (long long)next_offset,
                             max_timestamp);
failed:
    Py_XDECREF(bases);
    return NULL;
}

static PyMethodDef methods[] = {
    {"holds_records", holds_records, METH_VARARGS, NULL},
    {"scan", scan, METH_VARARGS, NULL},
    {"stamp", stamp, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_runs", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__runs(void)
{
    return PyModuleDef_Init(&definition);
}
