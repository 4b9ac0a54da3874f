// What tests/compat/test_programs.py asks of kafkajs: one job, given as JSON, told line by line as JSON.
//
// "versions" does everything once for each set of versions: kafkajs takes the highest version that it has and
// the broker serves, so the table of those it has is cut short. "produce" sends numbers until it is done,
// "member" reads as a member of a group until SIGTERM.
const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, Partitioners, logLevel } = require('kafkajs')
const { requests } = require('kafkajs/src/protocol/requests')
const lz4 = require('lz4js')

CompressionCodecs[CompressionTypes.Snappy] = require('kafkajs-snappy')
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async (encoder) => Buffer.from(lz4.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(lz4.decompress(buffer)),
})
const CODECS = {
  none: CompressionTypes.None, gzip: CompressionTypes.GZIP, snappy: CompressionTypes.Snappy, lz4: CompressionTypes.LZ4,
} // it has none for zstd
const FIRST_MS = 1_600_000_000_000 // the timestamp of a producer's first record; each next one is a second later
// Without a controller, which Metadata 0 does not name, its admin does nothing.
const LOWEST = {
  Produce: 3, Fetch: 4, Metadata: 1, ListOffsets: 1, OffsetCommit: 2, OffsetFetch: 1, CreateTopics: 2, DeleteTopics: 1, DescribeConfigs: 1,
}
const STEPS = 8 // of Fetch, from 4 to 11

const tell = (value) => console.log(JSON.stringify(value))
const pause = (ms) => new Promise((done) => setTimeout(done, ms))
const monotonic = () => Number(process.hrtime.bigint()) / 1e9 // the clock that Python's time.monotonic reads
const job = JSON.parse(process.argv[2])

const connect = () => new Kafka({
  brokers: [job.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 100, initialRetryTime: 50, maxRetryTime: 500 },
})

async function produce(topic, name, codec, first, count, pauseMs) {
  const producer = connect().producer({
    idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner,
  })
  await producer.connect()
  const message = (n) => ({
    partition: n % job.partitions, value: `${name}-${n}`, timestamp: String(FIRST_MS + n * 1000),
  })
  const numbers = Array.from({ length: count }, (_, n) => first + n)
  const batches = pauseMs > 0 ? numbers.map((n) => [n]) : [numbers]
  for (const batch of batches) {
    await producer.send({ topic, acks: -1, compression: codec, messages: batch.map(message) })
    if (pauseMs > 0) batch.forEach((n) => tell(['sent', n]))
    await pause(pauseMs)
  }
  await producer.disconnect()
}

// Reads as the only member of a group until it has so many records, commits them and leaves.
async function read(topic, groupId, wanted, before = async () => {}) {
  const consumer = connect().consumer({ groupId, maxWaitTimeInMs: 50, heartbeatInterval: 100, retry: { retries: 5 } })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  const rows = [], next = {}
  await new Promise((done, failed) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => failed(payload.error))
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ partition, message }) => {
        if (rows.length === wanted) return
        rows.push([partition, Number(message.offset), message.value.toString()])
        next[partition] = Number(message.offset) + 1
        if (rows.length === wanted) done()
      },
    })
  })
  await consumer.commitOffsets(Object.entries(next).map(([p, offset]) => ({
    topic, partition: Number(p), offset: String(offset),
  })))
  await before()
  await pause(200) // a heartbeat or two
  await consumer.disconnect()
  return rows
}

async function errorOf(send) {
  try {
    await send()
    return 'sent'
  } catch (error) {
    const cause = error.cause || error
    return cause.type || String(cause)
  }
}

async function once(topic) {
  const admin = connect().admin(), facts = { producers: job.producers.filter((name) => name in CODECS) }
  await admin.connect()
  const change = (entries) => ({
    resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configEntries: entries }], validateOnly: false,
  })
  const keep = { name: 'max.message.bytes', value: '100000' }
  await admin.createTopics({
    topics: [{ topic, numPartitions: job.partitions, configEntries: [keep, { name: 'retention.ms', value: '-1' }] }],
  })
  await Promise.all(facts.producers.map((name) => produce(topic, name, CODECS[name], 0, job.count, 0)))
  const all = job.count * facts.producers.length, group = `group of ${topic}`
  facts.read = await read(topic, `reader of ${topic}`, all)
  const state = async () => { facts.state = (await admin.describeGroups([group])).groups[0].state }
  facts.halves = [await read(topic, group, all / 2, state), await read(topic, group, all / 2)]

  const middle = await admin.fetchTopicOffsetsByTimestamp(topic, FIRST_MS + (job.count / 2) * 1000)
  facts.at_time = Object.fromEntries(middle.map(({ partition, offset }) => [partition, Number(offset)]))
  const ends = Object.fromEntries((await admin.fetchTopicOffsets(topic)).map((p) => [p.partition, Number(p.high)]))
  const [committed] = await admin.fetchOffsets({ groupId: group, topics: [topic] })
  facts.lag = committed.partitions.reduce((lag, p) => lag + ends[p.partition] - Number(p.offset), 0)

  const setting = async () => {
    const described = await admin.describeConfigs({
      includeSynonyms: false, resources: [{ type: ConfigResourceTypes.TOPIC, name: topic, configNames: ['retention.ms'] }],
    })
    return described.resources[0].configEntries[0].configValue
  }
  facts.configs = [await setting()]
  await admin.alterConfigs(change([keep, { name: 'retention.ms', value: '600000000' }]))
  facts.configs.push(await setting())
  await admin.alterConfigs(change([keep]))
  facts.configs.push(await setting())

  await admin.createPartitions({ topicPartitions: [{ topic, count: job.partitions + 1 }] })
  facts.partitions = (await admin.fetchTopicMetadata({ topics: [topic] })).topics[0].partitions.length
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: String(facts.at_time[0]) }] })
  facts.starts = Object.fromEntries((await admin.fetchTopicOffsets(topic))
    .filter((p) => p.partition < job.partitions).map((p) => [p.partition, Number(p.low)]))

  const producer = new Kafka({ brokers: [job.bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 0 } })
    .producer({ createPartitioner: Partitioners.DefaultPartitioner })
  await producer.connect()
  const send = (to, value) => () => producer.send({ topic: to, acks: -1, messages: [{ value }] })
  facts.too_large = await errorOf(send(topic, Buffer.alloc(200_000)))
  facts.no_topic = await errorOf(send(`no-${topic}`, 'x'))
  await producer.disconnect()

  await admin.listGroups()
  await admin.deleteGroups([group])
  await admin.deleteTopics({ topics: [topic] })
  facts.deleted = !(await admin.listTopics()).includes(topic)
  await admin.disconnect()
  return facts
}

async function versions() {
  const all = Object.values(requests).filter((api) => api && api.versions)
  const had = new Map(all.map((api) => [api, api.versions]))
  for (let step = 0; step < STEPS; step++) {
    for (const name of Object.keys(requests)) {
      const api = requests[name]
      if (had.has(api) && name !== 'ApiVersions') {
        api.versions = had.get(api).filter((version) => Number(version) <= (LOWEST[name] || 0) + step)
      }
    }
    tell(await once(`${job.topic}-${step}`))
  }
}

async function member() {
  const consumer = connect().consumer({
    groupId: job.group, sessionTimeout: job.session_ms, heartbeatInterval: job.session_ms / 6, maxWaitTimeInMs: 50,
    rebalanceTimeout: 10_000, retry: { retries: 100, initialRetryTime: 50, maxRetryTime: 500 },
  })
  const report = (what, value = null) => tell([what, monotonic(), value])
  let held = [], stopping = false
  process.on('SIGTERM', async () => {
    stopping = true
    await consumer.disconnect()
    report('closed')
    process.exit(0)
  })
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    report('revoked', held)
    held = payload.memberAssignment[job.topic] || []
    report('assigned', held)
  })
  await consumer.connect()
  await consumer.subscribe({ topic: job.topic, fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isStale, isRunning }) => {
      if (stopping || isStale() || !isRunning() || batch.messages.length === 0) return
      const last = batch.messages[batch.messages.length - 1]
      report('got', batch.messages.map((m) => [batch.partition, Number(m.offset), m.value.toString()]))
      await pause(job.pause)
      const offset = Number(last.offset) + 1
      try {
        await consumer.commitOffsets([{ topic: job.topic, partition: batch.partition, offset: String(offset) }])
        report('committed', { [batch.partition]: offset })
        resolveOffset(last.offset)
      } catch (error) {
        report('refused', String(error))
        throw error
      }
      await heartbeat()
    },
  })
}

const jobs = {
  versions, member,
  produce: () => produce(job.topic, job.producers[0], CODECS[job.producers[0]], job.first, job.count, job.pause),
}
jobs[job.do]().catch((error) => { console.error(error); process.exit(1) })
